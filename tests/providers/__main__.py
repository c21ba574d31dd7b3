"""`make test-providers`: our transports over the drivers' own libraries, of several releases, one table. See README.md.

python -m tests.providers [--programs FOLDER] [--only PROVIDER[,PROVIDER]] [--installed]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from tests.providers import buffers
from tests.providers.packages import ROOT, SUITES, Release, Unavailable, from_suite, installed
from tests.providers.table import Row, read_row, render
from tests.rdma.__main__ import STATUS_NOT_RUN, build

PROVIDERS = ("efa", "mlx5", "bnxt_re", "irdma", "ionic", "libfabric")
_LIBFABRIC_CASES = (  # README.md says which others there are
    "provider_random_small_writes_of_two",
    "provider_random_writes_of_three_on_two_lanes",
    "provider_random_writes_of_five",
    "provider_random_large_writes",
    "provider_window_of_one",
    "provider_zero_bytes",
    "provider_largest_write",
    "provider_full_queue",
    "provider_lanes_do_not_mix",
    "provider_close_peer",
    "provider_peer_destroyed",
    "provider_last_words",
    "provider_out_of_bounds",
    "provider_refused_requests",
    "provider_connect_twice",
    "provider_a_receiver_that_lags_loses_nothing",
    "provider_late_memory_is_written_from",
    "provider_a_refused_write_ends_no_session_half_way",
    "provider_a_late_rank_is_greeted_once",
    "provider_libfabric_takes_the_direct_form",
)
_LIMIT_S = 300


def releases(cache: Path, only_installed: bool) -> tuple[list[Release], list[str]]:
    """Those that can be had, and why others cannot."""
    found: list[Release] = []
    missing: list[str] = []
    for name in ("", *SUITES):
        if name and only_installed:
            continue
        try:
            found.append(from_suite(name, cache) if name else installed())
        except Unavailable as error:
            missing.append(f"rdma-core of {name or 'this machine'}: {error}")
    return found, missing


def run(programs: Path, release: Release, provider: str) -> Row:
    """Every native test over one driver, then `Buffer`, unless our transport refuses that release."""
    row = _run_natively(programs / "provider_tests", release, provider)
    if row.refused or row.failed:
        return row
    rows, gpu_rows, problem = buffers.run(release.command, provider, programs / "libprovider_box.so")
    return replace(row, buffer_rows=rows, gpu_rows=gpu_rows, failed=[problem] if problem else [])


def _run_natively(program: Path, release: Release, provider: str) -> Row:
    if not release.has(provider):
        return Row(provider, release.name, "not in this release")
    environment = {**os.environ, "UCCL_EP_TEST_PROVIDER": provider}
    command = [*release.command, str(program), *(_LIBFABRIC_CASES if provider == "libfabric" else ())]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        return Row(provider, release.name, failed=[f"no end within {_LIMIT_S} s"])
    return read_row(provider, release.name, done.stdout + done.stderr, done.returncode)


def main() -> int:
    """Exit code 77 when nothing can be run; 1 then, and when anything is missing, with UCCL_EP_REQUIRE_TOOLS=1."""
    parser = argparse.ArgumentParser(prog="python -m tests.providers", description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=Path, help="folder of native programs that are built already")
    parser.add_argument("--only", default=",".join(PROVIDERS), help="drivers to run, with commas between them")
    parser.add_argument("--installed", action="store_true", help="only the release that this machine has: no download")
    options = parser.parse_args()
    chosen = options.only.split(",")
    if unknown := [name for name in chosen if name not in PROVIDERS]:
        parser.error(f"no driver {', '.join(unknown)}; there are {', '.join(PROVIDERS)}")
    found, missing = releases(ROOT / "build" / "providers", options.installed)
    for line in missing:
        print(f"NOT RUN, SKIPPED: {line}", flush=True)
    required = os.environ.get("UCCL_EP_REQUIRE_TOOLS") == "1"
    if not found:
        return 1 if required else STATUS_NOT_RUN
    programs = options.programs or build(("provider_tests", "provider_box"))
    rows = [run(programs, release, provider) for provider in chosen for release in found]
    print(render(rows, missing))
    bad = any(row.failed for row in rows) or (required and missing)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
