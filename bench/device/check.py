"""device_check: every step in its own process within a time limit, one JSON file, one table.

python -m bench.device.check --device auto|cpu|cuda --out FOLDER [--quick] [--only ring,copies] [--build FILE]
python -m bench.device.check --render FILE

Started by bench/device_check.sh, which builds first. Exit status 0: every step that could run did well.
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
from pathlib import Path
from typing import Any

from bench.device.platforms import CONNECTIONS, open_platform
from bench.device.render import render
from bench.device.ring_programs import ROOT
from bench.device.steps import STEPS, Step

SCHEMA = 1
WHOLE_S = 470.0  # of all steps and the build together
LEAST_S = 10.0  # a step with less time left is not started
RANKS_A_PROCESS = 32  # hardware queues, so that streams of many ranks do not share one


def environment(step: Step) -> dict[str, str]:
    """Of a step's process. Queues have to be asked for before CUDA starts. Benchmarks load torch's kernels at once;
    the tests run as a user's process would."""
    wanted = {CONNECTIONS: str(RANKS_A_PROCESS), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    if step.name not in ("tests", "machine"):
        wanted["CUDA_MODULE_LOADING"] = "EAGER"
    return {**os.environ, **wanted}


def run_one(step: Step, device: str, quick: bool, limit_s: float, folder: Path) -> dict[str, Any]:
    """A step's entry of the result file, whatever becomes of its process."""
    out, log = folder / f"{step.name}.json", folder / f"{step.name}.log"
    command = [sys.executable, "-m", "bench.device.steps", step.name, "--device", device, "--out", str(out)]
    command += ["--limit-s", str(limit_s)] + (["--quick"] if quick else [])
    begin = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, cwd=ROOT, env=environment(step), start_new_session=True
        )
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _end(process)
    entry = {"name": step.name, "seconds": round(time.monotonic() - begin, 1), "limit_s": round(limit_s, 1)}
    return {**entry, **outcome(status, out, log)}


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
    try:
        found = json.loads(out.read_text())
    except (OSError, ValueError):
        found = {"status": "running", "why": "", "result": {}, "targets": []}
    if status is None:
        return {**found, "status": "out_of_time", "why": f"ended at its time limit; its output's end:\n{tail}"}
    if found["status"] == "running":
        return {**found, "status": "failed", "why": f"its process ended with status {status}:\n{tail}"}
    return dict(found)


def check(device: str, quick: bool, only: list[str], build: list[dict[str, Any]], whole_s: float) -> dict[str, Any]:
    """All steps; later ones run whatever becomes of earlier ones."""
    began = time.monotonic()
    spent = sum(float(entry["seconds"]) for entry in build)
    steps: list[dict[str, Any]] = list(build)
    with tempfile.TemporaryDirectory(prefix="device-check-") as folder:
        for step in STEPS:
            if only and step.name not in only:
                continue
            left = whole_s - spent - (time.monotonic() - began)
            if left < LEAST_S:
                entry = {"name": step.name, "status": "out_of_time", "seconds": 0.0, "limit_s": 0.0}
                steps.append({**entry, "why": "no time was left for it", "result": {}, "targets": []})
                continue
            print(f"==> {step.name} (at most {min(step.limit_s, left):.0f} s)", flush=True)
            steps.append(run_one(step, device, quick, min(step.limit_s, left), Path(folder)))
            why = steps[-1]["why"].strip().splitlines()
            print(f"    {steps[-1]['status']}, {steps[-1]['seconds']} s{': ' + why[0] if why else ''}", flush=True)
    return {
        "schema": SCHEMA,
        "benchmark": "device_check",
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - (time.monotonic() - began))),
        "device": device,
        "quick": quick,
        "seconds": round(spent + time.monotonic() - began, 1),
        "steps": steps,
        "targets": [target for step in steps for target in step["targets"]],
    }


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
    result = check(device, given.quick, only, build, given.whole_s)
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / file_name(result)
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(render(result))
    print(f"\nwritten: {path}")
    return 0 if all(step["status"] in ("ok", "skipped") for step in result["steps"]) else 1


if __name__ == "__main__":
    sys.exit(main())
