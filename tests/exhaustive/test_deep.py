"""The exhaustive tests again, on the larger cases (slow): UCCL_EP_TEST_DEPTH=2 on the same native program."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.conftest import ROOT, NativeBuild

_LIMIT_S = 600  # of all of them; about two minutes on one core


@pytest.mark.slow
@pytest.mark.timeout(_LIMIT_S + 300)  # builds the native tests when nobody has
def test_exhaustive_deep() -> None:
    build = NativeBuild("", [32])
    build.make()
    names = [n for (wave, _), tests in build.tests.items() if wave == 32 for n in tests if n.startswith("exhaustive_")]
    assert len(names) > 20
    environment = dict(os.environ, UCCL_EP_TEST_DEPTH="2", UCCL_EP_NATIVE_TEST_LIMIT_S="300")
    command = [str(build.folder / "native_tests"), *names]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_LIMIT_S)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
