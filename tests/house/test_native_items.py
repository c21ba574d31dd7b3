"""tests/conftest.py itself, in a tiny project of its own: each TEST one item, failures shown, no silent skip."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.source import ROOT

TEST = """// A test for the tests.
#include <cstdio>
#include <thread>
#include "native/check.h"
#include "kernels/host/probe.h"
TEST(probe_passes) { CHECK_EQ(uccl::probe_width(), UCCL_SIMT_WARP); }
TEST(probe_fails) {
  std::printf("said before it failed\\n");
  CHECK_EQ(uccl::probe_width(), 7);
}
TEST(probe_races) {
  int shared = 0;
  std::thread other([&] { ++shared; });
  ++shared;
  other.join();
  CHECK_EQ(shared, 2);
}
TEST(probe_overruns) {
  std::vector<int> four(4);
  volatile std::size_t index = 4;
  CHECK(four[index] != 12345);
}
"""
STREAM_TEST = """// The throughput kernels have tests at one lane, too.
#include "native/check.h"
#include "kernels/host/probe.h"
TEST(stream_passes) { CHECK_EQ(uccl::probe_width(), UCCL_SIMT_WARP); }
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "cmake", tmp_path / "cmake")
    shutil.copytree(ROOT / "tests/native", tmp_path / "tests/native")
    for name in ("CMakeLists.txt", "pyproject.toml", "tests/conftest.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name, text in {
        "proxy/ring/probe.cpp": "int probe_of_proxy() { return 1; }\n",
        "proxy/simulation/probe.cpp": "int probe_of_simulation() { return 2; }\n",
        "kernels/host/probe.h": "namespace uccl { int probe_width(); }\n",
        "kernels/host/probe.cpp": "namespace uccl { int probe_width() { return UCCL_SIMT_WARP; } }\n",
        "kernels/launch/probe.cpp": "namespace uccl { int probe_of_launch() { return 1; } }\n",
        "kernels/cpu/probe.cpp": "namespace uccl { int probe_of_cpu() { return UCCL_SIMT_WARP; } }\n",
        "tests/kernels/test_probe.cpp": TEST,
        "tests/kernels/throughput/test_stream.cpp": STREAM_TEST,
        "tests/proxy/test_other.cpp": '#include "native/check.h"\nTEST(other_passes) { CHECK(true); }\n',
        "tests/test_python.py": "def test_python():\n    pass\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def run_pytest(project: Path, *arguments: str, **environment: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        command, cwd=project, env={**os.environ, **environment}, capture_output=True, text=True, timeout=170
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(180)  # compiles the tiny project
def test_house_native_items(project: Path) -> None:
    status, output = run_pytest(project)
    assert status == 1 and "::probe_passes PASSED" in output and "::stream_passes PASSED" in output
    assert "[wave" not in output and not list(project.glob("build/native/native_tests_wave*"))

    status, output = run_pytest(project, "-m", "slow or not slow")
    assert status == 1
    streams = ("stream_passes", "stream_passes[wave64]", "stream_passes[wave1]")
    for name in ("probe_passes", "probe_passes[wave64]", "other_passes", *streams):
        assert f"::{name} PASSED" in output, output
    for name in ("probe_fails", "probe_fails[wave64]"):
        assert f"::{name} FAILED" in output, output
    assert "said before it failed" in output and "32 != 7" in output and "64 != 7" in output
    assert "other_passes[wave64]" not in output  # the proxy does not depend on the warp's width
    assert "probe_passes[wave1]" not in output  # of the kernels, a CPU runs only those of throughput with one lane
    assert "test_python PASSED" in output

    (project / "tests/proxy/test_empty.cpp").write_text("int nothing;\n")
    status, output = run_pytest(project, "--native-only", "tests/proxy")
    assert status != 0 and "test_empty.cpp holds no TEST" in output and "test_python" not in output

    (project / "tests/proxy/test_empty.cpp").write_text("int wrong = ;\n")
    status, output = run_pytest(project)
    assert status != 0 and "could not build the native tests" in output and "int wrong = ;" in output


@pytest.mark.slow
@pytest.mark.timeout(180)  # compiles the tiny project twice
@pytest.mark.parametrize(
    ("sanitize", "finds", "message"),
    [("thread", "probe_races", "data race"), ("address", "probe_overruns", "heap-buffer-overflow")],
)
def test_house_sanitizers_find_planted_bugs(project: Path, sanitize: str, finds: str, message: str) -> None:
    status, output = run_pytest(project, "--sanitize", sanitize)
    assert status == 1
    assert f"::{finds} FAILED" in output and message in output, output
    other = {"probe_races", "probe_overruns"} - {finds}
    assert f"::{other.pop()} PASSED" in output and "::probe_passes PASSED" in output, output
    assert "test_python" not in output


def test_house_no_compiler_is_a_loud_failure(project: Path) -> None:
    status, output = run_pytest(project, CXX="no-such-compiler")
    assert status != 0
    assert "could not configure the native tests" in output and "is a C++20 compiler installed" in output
