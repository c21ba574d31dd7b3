"""`python -m tests.integrations [name ...]`: integrators' published wheels on us, one row for each path."""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass, field

from tests.integrations.environment import Unavailable, newest_of, python_of
from tests.integrations.launch import DriverFailed, launch
from tests.integrations.report import Row, Told, table
from tests.integrations.versions import Integrator, integrators

STATUS_NOT_RUN = 77  # neither a success nor a failure, as automake has it


def chosen(names: list[str], everything: list[Integrator]) -> list[Integrator]:
    """The named ones, or all that are not run by name only.

    Raises:
        SystemExit: a name that versions.ini does not have.
    """
    known = {one.name: one for one in everything}
    strange = [name for name in names if name not in known]
    if strange:
        raise SystemExit(f"unknown: {', '.join(strange)}. versions.ini has {', '.join(known)}")
    return [known[name] for name in names] if names else [one for one in everything if not one.by_name]


def left_out(integrator: Integrator) -> str:
    """Why one that nobody asked for is left out, and what asks for it."""
    why = (
        f"wants Python {integrator.other_python} and a torch for it" if integrator.other_python else "a large download"
    )
    return f"{integrator.name} {integrator.version}: {why}; `make test-integrations ARGS={integrator.name}` runs it"


def shown(integrator: Integrator, told: Told) -> str:
    """What was installed and replaced, before the table."""
    beside = ", ".join(integrator.beside) or "nothing"
    lines = [f"{integrator.name}: {integrator.package}=={integrator.version}, beside it {beside}"]
    lines += [f"  shim: {what}" for what in told.shims] + [f"  {what}" for what in told.notes]
    return "\n".join(lines)


@dataclass
class Outcome:
    """Of all that were asked for: rows of the table, and why others have none."""

    rows: list[Row] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)

    def run(self, integrator: Integrator, newest: bool) -> None:
        """One integrator, in its pinned release or in the newest of the package index."""
        print(f"==> {integrator.name} {integrator.version}", flush=True)
        begin = installed = time.monotonic()
        try:
            if newest:
                pinned, integrator = integrator.version, newest_of(integrator)
                same = "also the pinned one" if pinned == integrator.version else f"pinned: {pinned}"
                print(f"  newest on the index: {integrator.version}, {same}", flush=True)
            python = python_of(integrator)
            installed = time.monotonic()
            told = launch(integrator, python)
        except Unavailable as why:
            self.not_run.append(f"{integrator.name} {integrator.version}: {why}")
            return
        except DriverFailed as why:
            self.failed.append(str(why))
            told = why.told
        else:
            if not told.rows:
                self.failed.append(f"{integrator.name}: the driver told nothing")
        print(shown(integrator, told), flush=True)
        print(f"  {installed - begin:.0f} s for its environment, {time.monotonic() - installed:.0f} s for its paths")
        self.rows += told.rows


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0 when every path passed, 1 when one did not, else 77 when wheels could not be had.

    With UCCL_EP_REQUIRE_TOOLS=1 wheels that could not be had are a failure.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.integrations", description=__doc__)
    parser.add_argument(
        "names", nargs="*", help="sections of versions.ini (default: all but those that say why not at the end)"
    )
    parser.add_argument(
        "--newest", action="store_true", help="each in the newest release of the package index, not in the pinned one"
    )
    options = parser.parse_args(arguments)
    everything, outcome = integrators(), Outcome()
    wanted = chosen(options.names, everything)
    unasked = [] if options.names else [one for one in everything if one not in wanted]
    for integrator in wanted:
        outcome.run(integrator, options.newest)
    rows, failed, not_run = outcome.rows, outcome.failed, outcome.not_run
    print(f"\n{table(row.cells() for row in rows)}\n")
    for what in failed:
        print(f"FAILED  {what}")
    for what in not_run:
        print(f"NOT RUN {what}")
    for one in unasked:
        print(f"NOT ASKED FOR {left_out(one)}")
    passed = sum(row.passed for row in rows)
    print(
        f"{passed} of {len(rows)} paths pass, {len(failed)} drivers failed, {len(not_run)} integrators not run, "
        f"{len(unasked)} not asked for"
    )
    required = os.environ.get("UCCL_EP_REQUIRE_TOOLS", "0") != "0"
    if passed != len(rows) or failed or (required and not_run):
        return 1
    return STATUS_NOT_RUN if not_run else 0


if __name__ == "__main__":
    sys.exit(main())
