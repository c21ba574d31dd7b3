"""The GPU tests (tests/gpu) in a pytest of their own; what passed, failed and was skipped, by test."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from bench.device.ring_programs import ROOT


def run(gpu: bool, limit_s: float) -> dict[str, Any]:
    """Counts, and the text of each failure and skip. Without a GPU the same bodies run on the CPU."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", f"--junitxml={report}", "tests/gpu"]
        command += ["-m", "gpu"] if gpu else ["-m", "not gpu", "-k", "cpu"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, cwd=ROOT)
            text = done.stdout + done.stderr
        except subprocess.TimeoutExpired as error:
            text = (error.stdout or b"").decode(errors="replace") + f"\nnot done in {limit_s:.0f} s"
        found = read_report(report) if report.is_file() else read_lines(text)
    return {**found, "tail": text[-3000:]}


def read_lines(text: str) -> dict[str, Any]:
    """From what `pytest -v` printed before it was ended: a test without a verdict is the one that hung."""
    ended = re.findall(r"^(\S+::\S.*?) (PASSED|FAILED|ERROR|SKIPPED)\b", text, re.MULTILINE)
    failed = [{"test": name, "says": ""} for name, how in ended if how in ("FAILED", "ERROR")]
    begun = re.findall(r"^(\S+::(?:(?! PASSED| FAILED| ERROR| SKIPPED).)+)$", text, re.MULTILINE)
    failed += [
        {"test": name.strip(), "says": "was running when the time was over, or when pytest died"} for name in begun
    ]
    passed = sum(how == "PASSED" for _, how in ended)
    return {
        "passed": passed,
        "failed": failed,
        "skipped": [{"test": n, "says": ""} for n, how in ended if how == "SKIPPED"],
    }


def read_report(path: Path) -> dict[str, Any]:
    """From pytest's junit file."""
    passed, failed, skipped, seconds = 0, [], [], {}
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname', '').rsplit('.', 1)[-1]}::{case.get('name')}"
        seconds[name] = float(case.get("time", 0.0))
        bad = next((child for child in case if child.tag in ("failure", "error")), None)
        left_out = case.find("skipped")
        if bad is not None:
            failed.append({"test": name, "says": (bad.text or bad.get("message") or "")[-2500:]})
        elif left_out is not None:
            skipped.append({"test": name, "says": left_out.get("message", "")})
        else:
            passed += 1
    slow = dict(sorted(seconds.items(), key=lambda item: -item[1])[:5])
    return {"passed": passed, "failed": failed, "skipped": skipped, "slowest_s": slow}
