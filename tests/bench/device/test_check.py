"""The harness: every step's end is reported, limits hold, later steps run, and any result can be shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench.device import check, fingerprint, pytest_run, sanitizer, steps
from bench.device.render import render
from bench.device.steps import Context, Skipped, Step, run_step
from bench.device.targets import Target
from uccl_ep import _native

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
    noted: list[dict[str, Any]] = []
    entry = check.run_one(steps.STEPS[0], "cpu", True, 0.7, tmp_path, noted.append)
    assert entry["status"] == "out_of_time" and "started" in entry["why"] and entry["seconds"] < 20
    assert noted[0]["status"] == check.RUNNING and noted[0]["name"] == steps.STEPS[0].name


def entry(name: str, status: str = "ok", seconds: float = 1.0, limit_s: float = 1.0) -> dict[str, Any]:
    return {"name": name, "status": status, "why": "x", "seconds": seconds, "limit_s": limit_s, "result": {},
            "targets": []}  # fmt: skip


def checked(folder: Path, only: list[str], earlier: list[dict[str, Any]], spent_s: float) -> check.Report:
    """All steps on a CPU after some that are done already."""
    report = check.Report(folder, "cpu", True, earlier)
    check.check(report, "cpu", True, only, spent_s, 470.0, {e["name"] for e in earlier})
    return report


def test_bench_check_later_steps_run_after_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran: list[str] = []
    written: list[list[str]] = []  # before each step, what the file says

    def one(step: Step, *_: Any) -> dict[str, Any]:
        ran.append(step.name)
        paths = list(tmp_path.glob("*.json"))
        written.append([e["name"] for path in paths for e in json.loads(path.read_text())["steps"]])
        return entry(step.name, "failed")

    monkeypatch.setattr(check, "run_one", one)
    names = [step.name for step in steps.STEPS]
    result = checked(tmp_path, [], [entry("build", seconds=400.0)], 400.0).result()
    assert ran == names and [s["name"] for s in result["steps"]] == ["build", *names]
    assert written == [[], *(["build", *names[:done]] for done in range(1, len(names)))], "the file follows each step"
    late = checked(tmp_path, ["ring", "copies"], [entry("build", seconds=465.0)], 465.0).result()
    assert [s["status"] for s in late["steps"]] == ["ok", "out_of_time", "out_of_time"]
    assert "no time was left" in render(late)


def test_bench_check_figures_come_before_what_takes_long() -> None:
    names = [step.name for step in steps.STEPS]
    assert names == [
        "machine",
        "kernels",
        "ring",
        "copies",
        "low_latency",
        "throughput",
        "launches",
        "tests",
        "sanitize",
    ]
    assert check.WHOLE_S <= 560, "a call of 600 s, less what starting and ending take"


@pytest.mark.parametrize(
    ("status", "limit_s", "done"),
    [("ok", 1, True), ("failed", 1, True), ("skipped", 1, True), ("running", 60, False),
     ("out_of_time", 0, False), ("out_of_time", 59, False), ("out_of_time", 60, True)],
)  # fmt: skip
def test_bench_check_what_a_later_call_runs_again(status: str, limit_s: float, done: bool) -> None:
    assert {step.name: step.limit_s for step in steps.STEPS}["ring"] == 60
    assert check.done_with(entry("ring", status, limit_s=limit_s)) == done


@pytest.mark.slow
def test_bench_check_goes_on_where_a_call_was_killed(tmp_path: Path) -> None:
    """It is killed while a step runs; the file tells which, and a later call runs that and what follows."""
    command = [sys.executable, "-m", "bench.device.check", "--device", "cpu", "--quick", "--out"]
    names = ["machine", "kernels", "copies"]
    first, second = tmp_path / "first", tmp_path / "second"
    process = subprocess.Popen([*command, str(first), "--only", ",".join(names)], cwd=ROOT, stdout=subprocess.PIPE)

    def seen() -> list[tuple[str, str]]:
        return [(s["name"], s["status"]) for p in first.glob("*.json") for s in json.loads(p.read_text())["steps"]]

    end = time.monotonic() + 60
    while len(seen()) < 2 and time.monotonic() < end:
        time.sleep(0.02)
    process.kill()
    process.communicate()
    assert seen()[0] == ("machine", "ok") and seen()[1] in (("kernels", "running"), ("kernels", "skipped"))
    (left,) = first.glob("*.json")
    before = json.loads(left.read_text())
    assert "running" in render({**before, "steps": [*before["steps"][:1], entry("kernels", "running")]})
    resumed = [*command, str(second), "--only", ",".join(names), "--resume", str(left)]
    done = subprocess.run(resumed, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and "==> machine" not in done.stdout and "==> copies" in done.stdout, done.stderr
    (path,) = second.glob("*.json")
    after = json.loads(path.read_text())
    assert [(s["name"], s["status"]) for s in after["steps"]] == [
        ("machine", "ok"), ("kernels", "skipped"), ("copies", "ok"),
    ]  # fmt: skip
    assert after["steps"][0] == before["steps"][0] and after["steps"][2]["result"]["copy"]["gb_per_s"] > 0
    mixed = [*command[:-2], "--out", str(second), "--resume", str(left)]  # without --quick
    refused = subprocess.run(mixed, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2 and "quick True" in refused.stderr


def test_bench_check_a_process_that_crashes_after_its_work_has_failed(tmp_path: Path) -> None:
    out, log = tmp_path / "step.json", tmp_path / "step.log"
    out.write_text(json.dumps({"status": "ok", "why": "", "result": {"gb_per_s": 1}, "targets": []}))
    log.write_text("Fatal Python error: Segmentation fault")
    found = check.outcome(-11, out, log)
    assert found["status"] == "failed" and "status -11" in found["why"] and "Segmentation fault" in found["why"]
    assert found["result"] == {"gb_per_s": 1} and check.outcome(0, out, log)["status"] == "ok"


def test_bench_check_environment_asks_for_queues_before_cuda_starts() -> None:
    assert check.environment(steps.STEPS[0])["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"
    by_name = {step.name: check.environment(step) for step in steps.STEPS}
    assert {by_name[name]["CUDA_MODULE_LOADING"] for name in ("throughput", "tests")} == {"EAGER"}
    assert by_name["sanitize"]["CUDA_MODULE_LOADING"] == "LAZY", "memcheck instruments all that is loaded"


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
    sanitizer.options.cache_clear()
    found = sanitizer.check(plan, "cuda", 5)
    assert found["status"] == "clean" and "--tool memcheck" in found["says"] and "small_case cuda 1" in found["says"]
    assert "--report-api-errors" not in found["says"], "this version's help does not know it"
    knows = "--report-api-errors arg, --kernel-name arg"
    tool.write_text(f"#!/bin/sh\necho '{sanitizer.DONE}'; echo 'ERROR SUMMARY: 0 errors' \"$@\" '{knows}'\n")
    sanitizer.options.cache_clear()
    said = sanitizer.check(plan, "cuda", 5)["says"]
    assert "--report-api-errors no --kernel-name kns=low_latency_ --kernel-name kns=throughput_" in said
    kernels = set(_native.kernel_arguments())
    assert all(name.startswith(sanitizer.OURS) for name in kernels)
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
            {"kernel": "copy_rows", "row_bytes": 7168, "blocks_an_sm": 2, "gb_per_s": 3600.0}]},
        "launches": {"modes": [{"shape": {"mode": "low_latency"}, "host_us": {"combine": 12.5}, "replay_ms": 0.25}]},
    }  # fmt: skip
    entries = [
        {"name": name, "status": "ok", "why": "", "seconds": 1.0, "result": result} for name, result in results.items()
    ]
    missed = Target("ring", 1.0, 50.0, True, "4 rings").as_json()
    text = render(
        {"started": "t", "device": "cuda", "seconds": 9.0, "quick": False, "steps": entries, "targets": [missed]}
    )
    assert {s.name for s in steps.STEPS} == results.keys(), "every step has a section"
    for word in ("61.2", "1.50", "82% of copy", "3300", "PeerTimeout", "90%", "12.5 us", "0.250 ms", "MISSED", "0.70"):
        assert word in text, word


def test_check_gpu_tests_need_no_package_that_it_does_not_bring() -> None:
    """bench/device_check.sh names what a machine with a GPU has to have; the other packages of a checkout stay away."""
    away = "hypothesis xdist typer click rich shellingham matplotlib transformers mkdocs".split()
    program = f"""
import sys
sys.modules.update(dict.fromkeys({away!r}))
import pytest
sys.exit(pytest.main("--collect-only -q -m gpu -p no:cacheprovider -p pytest_timeout tests/gpu".split()))
"""
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tests/gpu/test_rounds.py::" in done.stdout
