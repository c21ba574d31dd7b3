"""The harness: every step's end is reported, limits hold, later steps run, and any result can be shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.device import check, fingerprint, pytest_run, sanitizer, steps
from bench.device.render import render
from bench.device.steps import Context, Skipped, Step, run_step
from bench.device.targets import Target

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "bench" / "device_check.sh"
pytestmark = pytest.mark.timeout(120)


def fine(context: Context) -> None:
    context.targets = [Target("x", 2.0, 1.0, True, "here").as_json()]
    context.note({"value": 1})


def fails(context: Context) -> None:
    context.note({"value": 2})
    raise ValueError("wrong rows")


def leaves(context: Context) -> None:
    raise Skipped("no such thing here")


@pytest.mark.parametrize(
    ("run", "status", "why"), [(fine, "ok", ""), (fails, "failed", "wrong rows"), (leaves, "skipped", "no such thing")]
)
def test_bench_check_a_step_says_how_it_ended(run: Any, status: str, why: str, tmp_path: Path) -> None:
    out = tmp_path / "step.json"
    assert run_step(Step(run, 5), Context("cpu", True, 5, out)) == status
    found = json.loads(out.read_text())
    assert found["status"] == status and why in found["why"]
    assert check.outcome(0, out, tmp_path / "none") == found
    if run is fine:
        assert found["targets"][0]["met"] and found["result"] == {"value": 1}


def test_bench_check_what_was_measured_before_a_limit_is_kept(tmp_path: Path) -> None:
    out, log = tmp_path / "step.json", tmp_path / "log"
    Context("cpu", True, 5, out).note({"rates": [1]})
    log.write_text("last words")
    late = check.outcome(None, out, log)
    assert late["status"] == "out_of_time" and late["result"] == {"rates": [1]} and "last words" in late["why"]
    died = check.outcome(-9, out, log)
    assert died["status"] == "failed" and "status -9" in died["why"] and died["result"] == {"rates": [1]}
    nothing = check.outcome(1, tmp_path / "missing", log)
    assert nothing["status"] == "failed" and nothing["result"] == {}


def test_bench_check_a_step_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\necho started; sleep 60 & sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(slow))
    entry = check.run_one(steps.STEPS[0], "cpu", True, 0.7, tmp_path)
    assert entry["status"] == "out_of_time" and "started" in entry["why"] and entry["seconds"] < 20


def test_bench_check_later_steps_run_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def one(step: Step, *_: Any) -> dict[str, Any]:
        ran.append(step.name)
        return {
            "name": step.name,
            "status": "failed",
            "why": "x",
            "seconds": 1.0,
            "limit_s": 1.0,
            "result": {},
            "targets": [],
        }

    monkeypatch.setattr(check, "run_one", one)
    build = [
        {"name": "build", "status": "ok", "why": "", "seconds": 400.0, "limit_s": 1.0, "result": {}, "targets": []}
    ]
    result = check.check("cpu", True, [], build, 470.0)
    assert ran == [step.name for step in steps.STEPS] and result["steps"][0]["name"] == "build"
    late = check.check("cpu", True, ["ring", "copies"], [{**build[0], "seconds": 465.0}], 470.0)
    assert [s["status"] for s in late["steps"]] == ["ok", "out_of_time", "out_of_time"]
    assert "no time was left" in render(late)


def test_bench_check_environment_asks_for_queues_before_cuda_starts() -> None:
    assert check.environment(steps.STEPS[0])["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"
    by_name = {step.name: check.environment(step) for step in steps.STEPS}
    assert by_name["throughput"]["CUDA_MODULE_LOADING"] == "EAGER"
    assert by_name["tests"].get("CUDA_MODULE_LOADING") == os.environ.get("CUDA_MODULE_LOADING")


@pytest.mark.slow
def test_bench_check_script_runs_steps_and_shows_the_table(tmp_path: Path) -> None:
    command = [str(SCRIPT), "--installed", "--device", "cpu", "--quick", "--only", "machine,kernels,launches"]
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], capture_output=True, text=True, timeout=100, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.glob("device_check-*.json")
    result = json.loads(path.read_text())
    assert [(s["name"], s["status"]) for s in result["steps"]] == [
        ("machine", "ok"), ("kernels", "skipped"), ("launches", "ok"),
    ]  # fmt: skip
    assert result["schema"] == check.SCHEMA and result["steps"][0]["result"]["cores"] > 0
    shown = render(result)
    assert "cached dispatch" in shown and shown in done.stdout


def test_bench_check_script_refuses_what_it_does_not_know() -> None:
    done = subprocess.run([str(SCRIPT), "--fast"], capture_output=True, text=True, timeout=20)
    assert done.returncode == 2 and "unknown argument --fast" in done.stderr
    told = subprocess.run([str(SCRIPT), "--help"], capture_output=True, text=True, timeout=20).stdout
    for word in ("scikit-build-core", "nanobind", "msgpack", "pytest-timeout", "pip download", "--no-deps"):
        assert word in told


def test_bench_check_help_names_every_step() -> None:
    told = subprocess.run([str(SCRIPT), "--help"], capture_output=True, text=True, timeout=20).stdout
    assert ", ".join(step.name for step in steps.STEPS) in told


def test_bench_check_sanitizer_verdicts() -> None:
    clean = f"{sanitizer.DONE}\n========= ERROR SUMMARY: 0 errors\n"
    assert sanitizer.judge(0, clean) == {"status": "clean", "says": "0 errors"}
    found = sanitizer.judge(sanitizer.FOUND, "========= Invalid __global__ read\n========= ERROR SUMMARY: 2 errors\n")
    assert found["status"] == "found" and found["says"].startswith("2 errors")
    assert sanitizer.judge(1, "========= Device not supported")["status"] == "unsupported"
    assert sanitizer.judge(0, "no summary")["status"] == "failed"
    assert sanitizer.judge(0, "========= ERROR SUMMARY: 0 errors")["status"] == "failed", "the case did not end well"


def test_bench_check_sanitizer_is_run_and_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "compute-sanitizer"
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    plan = sanitizer.PLANS[0]
    assert sanitizer.check(plan, "cuda", 5)["status"] == "unsupported"
    tool.write_text(f"#!/bin/sh\necho '{sanitizer.DONE}'; echo 'ERROR SUMMARY: 0 errors' \"$@\"\n")
    tool.chmod(0o755)
    found = sanitizer.check(plan, "cuda", 5)
    assert found["status"] == "clean" and "--tool memcheck" in found["says"] and "small_case cuda 1" in found["says"]
    tool.write_text("#!/bin/sh\nexec sleep 30\n")
    assert sanitizer.check(plan, "cuda", 0.3)["status"] == "out_of_time"


def test_bench_check_reads_pytests_report(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="tests.gpu.test_a" name="t1" time="2"/>'
        '<testcase classname="tests.gpu.test_a" name="t2" time="1"><failure message="m">E wrong</failure></testcase>'
        '<testcase classname="tests.gpu.test_a" name="t3" time="0"><skipped message="no GPU"/></testcase>'
        "</testsuite></testsuites>"
    )
    found = pytest_run.read_report(report)
    assert found["passed"] == 1 and found["failed"] == [{"test": "test_a::t2", "says": "E wrong"}]
    assert (
        found["skipped"] == [{"test": "test_a::t3", "says": "no GPU"}]
        and next(iter(found["slowest_s"])) == "test_a::t1"
    )


def test_bench_check_knows_which_test_hung(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = "tests/gpu/test_a.py::t[x 1] PASSED   [ 10%]\ntests/gpu/test_a.py::u FAILED [ 20%]\ntests/gpu/test_a.py::v "
    found = pytest_run.read_lines(text)
    assert found["passed"] == 1 and [f["test"][-1] for f in found["failed"]] == ["u", "v"]
    assert "was running" in found["failed"][1]["says"]
    ended = pytest_run.read_lines(text + "PASSED\n")
    assert ended["passed"] == 2 and len(ended["failed"]) == 1
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nprintf 'tests/gpu/test_a.py::v '; exec sleep 30\n")
    slow.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(slow))
    found = pytest_run.run(True, 0.5)
    assert found["failed"][0]["test"].endswith("::v") and "not done in" in found["tail"]


def test_bench_check_asks_nvidia_smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert "no nvidia-smi" in fingerprint.gpu_facts()["unknown"]
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho " + ", ".join(f"value {n}" for n in range(len(fingerprint.QUERY))) + "\n")
    tool.chmod(0o755)
    facts = fingerprint.gpu_facts()
    assert facts["name"] == "value 0" and facts["pcie.link.gen.current"] == "value 5"
    tool.write_text("#!/bin/sh\necho 'No devices were found'; exit 6\n")
    assert "No devices" in fingerprint.gpu_facts()["unknown"]


def test_bench_check_renders_every_section() -> None:
    wall = {"dispatch": {"median_ms": 1.0, "max_ms": 2.0, "rounds": 3}}
    shape = {"mode": "throughput", "ranks": 4, "ranks_per_node": 2, "tokens": 8}
    exchange = {
        "copy": {"gb_per_s": 4000.0},
        "shapes": [
            {"shape": shape, "placement": "host", "wall": wall, "kernels": wall,
             "achieved": {"throughput_dispatch": {"gb_per_s": 3300.0, "of_copy": 0.825}}},
            {"shape": shape, "error": "PeerTimeout: rank 1"},
        ],
    }  # fmt: skip
    late = {"p50": 1.5, "p99": 2.5, "p999": 3.5}
    results = {
        "machine": {"cpu": "c", "cores": 2, "load_1min": 0.1, "versions": {"torch": "2"}, "gpu": {"name": "G"}},
        "kernels": {"arch": "sm_90a", "kernels": [
            {"kernel": "k", "registers": 40, "shared_bytes": 0, "spilled_bytes": 0}]},
        "tests": {"passed": 3, "failed": [{"test": "t", "says": "E bad"}], "skipped": [{"test": "s", "says": "why"}]},
        "sanitize": {"runs": [{"tool": "memcheck", "ranks": 1, "status": "clean", "says": "0 errors"}]},
        "ring": {"producers": "G", "rates": [{"rings": 4, "threads": 2, "width": 8, "million_per_s": 61.2}],
                 "paced": [{"rings": 4, "threads": 2, "reached_per_s": 8e6, "one_way_us": late,
                            "clock": {"uncertainty_us": 0.7}}],
                 "round_trips": [{"rings": 4, "threads": 2, "half_us": late}]},
        "throughput": exchange,
        "low_latency": exchange,
        "copies": {"copy": {"gb_per_s": 4000.0}, "rows": [
            {"kernel": "copy_rows_bulk", "row_bytes": 7168, "blocks_an_sm": 2, "gb_per_s": 3600.0}]},
        "launches": {"modes": [{"shape": {"mode": "low_latency"}, "host_us": {"combine": 12.5}, "replay_ms": 0.25}]},
    }  # fmt: skip
    entries = [
        {"name": name, "status": "ok", "why": "", "seconds": 1.0, "result": result} for name, result in results.items()
    ]
    missed = Target("ring", 1.0, 50.0, True, "4 rings").as_json()
    text = render(
        {"started": "t", "device": "cuda", "seconds": 9.0, "quick": False, "steps": entries, "targets": [missed]}
    )
    assert [s.name for s in steps.STEPS] == list(results), "every step has a section"
    for word in ("61.2", "1.50", "82% of copy", "3300", "PeerTimeout", "90%", "12.5 us", "0.250 ms", "MISSED", "0.70"):
        assert word in text, word
