"""`make test-rdma`: a guest with soft-RoCE, our tests on its real verbs stack, one table. See README.md.

python -m tests.rdma [--programs FOLDER] [--only STEP[,STEP]] [--cpus N] [--list]
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from tests.rdma.guest import image, machine
from tests.rdma.guest.packages import ROOT, Unavailable
from tests.rdma.inside.report import Report, read_all
from tests.rdma.inside.steps import STEPS
from tests.rdma.table import render

PROGRAMS = ("native_tests", "rdma_nodes", "rdma_side")
# Of the guest: all steps together compute for 7 minutes on one processor, of which a busy host gives it a quarter.
_WHOLE_S = 3600.0
STATUS_NOT_RUN = 77  # neither a success nor a failure, as automake has it
_PYVERBS = Path("/usr/lib/python3/dist-packages/pyverbs")


def build(programs: tuple[str, ...] = PROGRAMS) -> Path:
    """Builds native programs where `make test` builds its own; the folder they are in."""
    folder = ROOT / "build" / "native"
    tools = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    configure = ["cmake", "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", "-DUCCL_EP_TESTS=ON"]
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # pytest builds there too (tests/conftest.py)
        for command in (configure, ["cmake", "--build", str(folder), "--target", *programs]):
            subprocess.run(command, check=True, env={**os.environ, **tools}, stdout=subprocess.DEVNULL)
    return folder


def python_folder(share: Path) -> Path:
    """A folder for PYTHONPATH with the distribution's pyverbs and nothing else of it; empty where there is none."""
    folder = share / "python"
    folder.mkdir(parents=True, exist_ok=True)
    if _PYVERBS.is_dir():
        (folder / "pyverbs").symlink_to(_PYVERBS)
    return folder


def boot(programs: Path, steps: list[str], share: Path, cpus: int) -> tuple[machine.Outcome, str]:
    """Runs the steps in the guest; how it ended, and what it ran on.

    Args:
        cpus: the guest's; 0: one that is emulated, or two with KVM.

    Raises:
        Unavailable: no guest can be had here.
    """
    made = image.prepare(image.cache_folder())
    why_emulated = machine.really_accelerates(made)
    guest = machine.Machine(made, accelerated=not why_emulated, cpus=cpus or (1 if why_emulated else 2))
    clock = "instructions" if guest.counts_instructions else "host"
    print(f"rdma: kernel {made.release}, {'emulated' if why_emulated else 'KVM'}, clock: {clock}", flush=True)
    shutil.rmtree(share, ignore_errors=True)
    environment = {
        "PYTHONPATH": f"{python_folder(share)}{os.pathsep}{ROOT}",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "UCCL_EP_GUEST_CLOCK": clock,
    }

    def say(line: str) -> None:
        with open(share / "console.txt", "a", encoding="utf-8") as console:
            console.write(line + "\n")
        if "rdma: " in line:
            print(line[line.index("rdma: ") :], flush=True)

    command = [sys.executable, "-m", "tests.rdma.inside", str(share), str(programs), *steps]
    ran_on = f"{guest.cpus} emulated processor(s) (KVM: {why_emulated})" if why_emulated else "KVM"
    if guest.counts_instructions:
        ran_on += ", by a clock that counts instructions"
    return machine.run(guest, command, share, environment, _WHOLE_S, say), ran_on


def judge(reports: list[Report], outcome: machine.Outcome) -> int:
    """The exit code: 0 when every step did what it must."""
    bad = [report.step for report in reports if not report.good]
    if outcome.code == machine.NO_CODE:
        print(f"FAILED: the guest left no exit code: {outcome.why}")
        return 1
    if bad or outcome.code != 0:
        print(f"FAILED: {', '.join(bad) or f'the guest ended with {outcome.code}'}")
        return 1
    return 0


def end(number: int, frame: FrameType | None) -> None:
    """A signal handler: ends as an exception does, so that no guest is left behind by a time limit around this."""
    raise SystemExit(128 + number)


def main() -> int:
    """Exit code 77 when no guest can be had; 1 then with UCCL_EP_REQUIRE_TOOLS=1."""
    parser = argparse.ArgumentParser(prog="python -m tests.rdma", description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=Path, help="folder of native programs that are built already")
    parser.add_argument("--only", default=",".join(STEPS), help="steps to run, with commas between them")
    parser.add_argument("--cpus", type=int, default=0, help="the guest's processors; 2 and more go by the host's clock")
    parser.add_argument("--list", action="store_true", help="name the steps and end")
    options = parser.parse_args()
    if options.list:
        print("\n".join(STEPS))
        return 0
    steps = options.only.split(",")
    if unknown := [step for step in steps if step not in STEPS]:
        parser.error(f"no step {', '.join(unknown)}; there are {', '.join(STEPS)}")
    signal.signal(signal.SIGTERM, end)
    begin, share = time.monotonic(), image.cache_folder() / "run"
    try:
        image.prepare(image.cache_folder())  # before minutes of compiling
        outcome, ran_on = boot(options.programs or build(), steps, share, options.cpus)
    except Unavailable as error:
        required = os.environ.get("UCCL_EP_REQUIRE_TOOLS") == "1"
        print(f"{'FAILED' if required else 'NOT RUN, SKIPPED'}: {len(steps)} steps on a real verbs stack: {error}")
        return 1 if required else STATUS_NOT_RUN
    reports = read_all(share, steps)
    print(render(reports, outcome, ran_on, time.monotonic() - begin))
    return judge(reports, outcome)


if __name__ == "__main__":
    raise SystemExit(main())
