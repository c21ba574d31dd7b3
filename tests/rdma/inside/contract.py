"""Step: the native tests of the verbs transport that need a device, each in a process of its own."""

from __future__ import annotations

import os
import subprocess

from tests.rdma.inside.context import Context
from tests.rdma.inside.report import Report

_PREFIX = "verbs_real_"
_LIMIT_S = 50


def run(context: Context, report: Report) -> None:
    program = context.programs / "native_tests"
    listing = subprocess.run([str(program), "--list"], capture_output=True, text=True, check=True).stdout
    names = [line.split("\t")[0] for line in listing.splitlines() if line.startswith(_PREFIX)]
    environment = {
        **os.environ,
        "UCCL_EP_TEST_VERBS_DEVICE": "rxe0",
        "UCCL_EP_NATIVE_TEST_LIMIT_S": str(_LIMIT_S),
    }
    passed = 0
    for name in names:
        done = subprocess.run(
            [str(program), name], capture_output=True, text=True, env=environment, timeout=_LIMIT_S + 10
        )
        passed += done.returncode == 0
        if done.returncode != 0:
            report.add(name, " ".join(done.stdout.split()[-40:]) or f"ended with {done.returncode}", False)
    report.add("contract tests on the device", f"{passed} of {len(names)}", passed == len(names) > 0)
    report.passed = passed
