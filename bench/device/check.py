"""device_check: every step in its own process within a time limit, one JSON file, one table.

python -m bench.device.check --device auto|cpu|cuda --out FOLDER [--quick] [--only ring,copies] [--build FILE]
                             [--resume FILE]
python -m bench.device.check --render FILE

Started by bench/device_check.sh, which builds first. Exit status 0: every step that could run did well.

The file is written after every step, so that a call that is ended keeps what it has; with --resume FILE a later call
goes on where that one ended.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.device.platforms import CONNECTIONS, open_platform
from bench.device.render import render
from bench.device.ring_programs import ROOT
from bench.device.steps import STEPS, Step

SCHEMA = 1
WHOLE_S = 540.0  # of all steps and the build together: a call of 600 s ends by itself
RUNNING = "running"
NOTE_S = 5.0  # how often the file is told what a running step has
LEAST_S = 10.0  # a step with less time left is not started
RANKS_A_PROCESS = 32  # hardware queues, so that streams of many ranks do not share one


def environment(step: Step) -> dict[str, str]:
    """Of a step's process. Queues have to be asked for before CUDA starts. Kernels of torch are loaded at once: ranks
    share the process, and CUDA that loads a kernel for one may wait for another's, which waits for that one. A
    sanitizer instruments all that is loaded, so there nothing is without need."""
    wanted = {CONNECTIONS: str(RANKS_A_PROCESS), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    wanted["PYTHONFAULTHANDLER"] = "1"
    if step.name != "machine":
        wanted["CUDA_MODULE_LOADING"] = "LAZY" if step.name == "sanitize" else "EAGER"
    return {**os.environ, **wanted}


def run_one(
    step: Step, device: str, quick: bool, limit_s: float, folder: Path, note: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """A step's entry of the result file, whatever becomes of its process; `note` is told its entry so far, now and
    then."""
    out, log = folder / f"{step.name}.json", folder / f"{step.name}.log"
    command = [sys.executable, "-m", "bench.device.steps", step.name, "--device", device, "--out", str(out)]
    command += ["--limit-s", str(limit_s)] + (["--quick"] if quick else [])
    begin = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, cwd=ROOT, env=environment(step), start_new_session=True
        )
        entry = {"name": step.name, "seconds": 0.0, "limit_s": round(limit_s, 1)}
        try:
            status = None
            while status is None and (left := begin + limit_s - time.monotonic()) > 0:
                note({**entry, **so_far(out), "status": RUNNING, "why": "the call was ended while this ran"})
                try:
                    status = process.wait(min(left, NOTE_S))
                except subprocess.TimeoutExpired:
                    entry["seconds"] = round(time.monotonic() - begin, 1)
        finally:
            _end(process)
    entry["seconds"] = round(time.monotonic() - begin, 1)
    return {**entry, **outcome(status, out, log)}


def so_far(out: Path) -> dict[str, Any]:
    """What a step has written."""
    try:
        found: dict[str, Any] = json.loads(out.read_text())
    except (OSError, ValueError):
        found = {"status": RUNNING, "why": "", "result": {}, "targets": []}
    return found


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the step's process and what it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def outcome(status: int | None, out: Path, log: Path) -> dict[str, Any]:
    """{status, why, result, targets} from a step's exit status (None: killed at its limit), file and output."""
    tail = log.read_text(errors="replace")[-2000:] if log.is_file() else ""
    found = so_far(out)
    if status is None:
        return {**found, "status": "out_of_time", "why": f"ended at its time limit; its output's end:\n{tail}"}
    if found["status"] == RUNNING:
        return {**found, "status": "failed", "why": f"its process ended with status {status}:\n{tail}"}
    if status != 0 and found["status"] in ("ok", "skipped"):
        return {**found, "status": "failed", "why": f"after its work its process ended with status {status}:\n{tail}"}
    return found


class Report:
    """The result file: written whenever something is added, under a name that tells the machine once that is known.

    Args:
        folder: where.
        device, quick: what is run.
        steps: entries that there are already, of the build and of an earlier call.
    """

    def __init__(self, folder: Path, device: str, quick: bool, steps: list[dict[str, Any]]) -> None:
        self._folder, self._device, self._quick = folder, device, quick
        self._steps = list(steps)
        self._started, self._began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), time.monotonic()
        self._earlier_s = sum(float(entry["seconds"]) for entry in steps)
        self.path: Path | None = None

    def result(self) -> dict[str, Any]:
        """All of it, steps in the order that they are run in."""
        order = [step.name for step in STEPS]
        steps = sorted(self._steps, key=lambda entry: order.index(entry["name"]) if entry["name"] in order else -1)
        return {
            "schema": SCHEMA,
            "benchmark": "device_check",
            "started": self._started,
            "device": self._device,
            "quick": self._quick,
            "seconds": round(self._earlier_s + time.monotonic() - self._began, 1),
            "steps": steps,
            "targets": [target for step in steps for target in step["targets"]],
        }

    def add(self, entry: dict[str, Any]) -> None:
        """A step's entry, in place of one of that name, and the file as it is now."""
        self._steps = [other for other in self._steps if other["name"] != entry["name"]] + [entry]
        result = self.result()
        path = self._folder / file_name(result)
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(result, indent=1) + "\n")
        partial.replace(path)
        if self.path not in (None, path):
            self.path.unlink(missing_ok=True)  # type: ignore[union-attr]
        self.path = path


def done_with(entry: dict[str, Any]) -> bool:
    """Whether an earlier call has done a step, well or not. One that was cut short, by the end of the call or by the
    time that was left to it, is run again; one that took all the time that it may ever take is not."""
    limits = {step.name: step.limit_s for step in STEPS}
    if entry["status"] == "out_of_time":
        return float(entry["limit_s"]) >= limits.get(entry["name"], 0.0)
    return bool(entry["status"] != RUNNING)


def check(
    report: Report, device: str, quick: bool, only: list[str], spent_s: float, whole_s: float, done: set[str]
) -> None:
    """All steps but those that are done; later ones run whatever becomes of earlier ones.

    Args:
        spent_s: seconds of the whole that are gone, by the build. done: names of steps.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="device-check-") as folder:
        for step in STEPS:
            if step.name in done or (only and step.name not in only):
                continue
            left = whole_s - spent_s - (time.monotonic() - began)
            if left < LEAST_S:
                none = {"name": step.name, "status": "out_of_time", "seconds": 0.0, "limit_s": 0.0}
                report.add({**none, "why": "no time was left for it", "result": {}, "targets": []})
                continue
            print(f"==> {step.name} (at most {min(step.limit_s, left):.0f} s)", flush=True)
            entry = run_one(step, device, quick, min(step.limit_s, left), Path(folder), report.add)
            report.add(entry)
            why = entry["why"].strip().splitlines()
            print(f"    {entry['status']}, {entry['seconds']} s{': ' + why[0] if why else ''}", flush=True)


def file_name(result: dict[str, Any]) -> str:
    """device_check-<device>-<time>.json"""
    machine: dict[str, Any] = next((s["result"] for s in result["steps"] if s["name"] == "machine"), {})
    gpu = machine.get("gpu") or {}
    name = gpu.get("name") or machine.get("cpu") or result["device"]
    slug = re.sub(r"[^a-z0-9]+", "-", str(name).lower()).strip("-")
    return f"device_check-{slug}-{re.sub(r'[^0-9]', '', result['started'])}.json"


def main() -> int:
    """The command line; see the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("build/bench/results"))
    parser.add_argument("--quick", action="store_true", help="small shapes and few rounds: a look, not a measurement")
    parser.add_argument("--only", default="", help="comma-separated steps: " + ", ".join(s.name for s in STEPS))
    parser.add_argument("--build", type=Path, help="what the building script did, as a JSON list of steps")
    parser.add_argument("--resume", type=Path, help="what an earlier call has written: its steps are not run again")
    parser.add_argument("--whole-s", type=float, default=WHOLE_S, help="time limit of everything, the build included")
    parser.add_argument("--render", type=Path, help="only print the table of a result file")
    given = parser.parse_args()
    if given.render is not None:
        print(render(json.loads(given.render.read_text())))
        return 0
    only = [name for name in given.only.split(",") if name]
    unknown = set(only) - {step.name for step in STEPS}
    if unknown:
        parser.error(f"--only {', '.join(sorted(unknown))}: not a step; allowed: {', '.join(s.name for s in STEPS)}")
    build = json.loads(given.build.read_text()) if given.build is not None else []
    device = given.device
    if device == "auto":
        device = "cpu" if open_platform("auto").driver is None else "cuda"
    earlier: list[dict[str, Any]] = []
    if given.resume is not None:
        before = json.loads(given.resume.read_text())
        if (before["quick"], before["device"]) != (given.quick, device):
            parser.error(f"--resume {given.resume}: it is of --device {before['device']}, quick {before['quick']}")
        ours = {step.name for step in STEPS}
        earlier = [entry for entry in before["steps"] if entry["name"] in ours and done_with(entry)]
    report = Report(given.out, device, given.quick, [*build, *earlier])
    spent = sum(float(entry["seconds"]) for entry in build)
    check(report, device, given.quick, only, spent, given.whole_s, {entry["name"] for entry in earlier})
    result = report.result()
    print(render(result))
    print(f"\nwritten: {report.path}")
    return 0 if all(step["status"] in ("ok", "skipped") for step in result["steps"]) else 1


if __name__ == "__main__":
    sys.exit(main())
