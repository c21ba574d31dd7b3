"""`uccl-ep warmup`: fills the cache for named architectures without a GPU, prints a table, explains refusals."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from tests.uccl_ep.gpu.test_build import CountingCompiler
from uccl_ep import _native
from uccl_ep.errors import InvalidArgument, UcclEpError
from uccl_ep.gpu import cupy_driver
from uccl_ep.gpu.compiler import Code, Usage
from uccl_ep.gpu.warmup import run_warmup

ROOT = Path(__file__).resolve().parents[3]


class NamingCompiler(CountingCompiler):
    """Says what each kernel takes, as NVRTC does; for AMD nothing, as hiprtc."""

    def compile(self, source: str, name: str, arch: str, root: Path) -> Code:
        code = super().compile(source, name, arch, root)
        kernels = re.findall(r"decltype\((\w+)\)", source)
        usage = tuple(Usage(k, 111, 222, 333) for k in kernels) if arch.startswith("sm_") else ()
        return Code(code.binary, usage, 0.125)


def printed(archs: list[str], folder: Path) -> tuple[list[str], NamingCompiler]:
    stream, compiler = io.StringIO(), NamingCompiler()
    run_warmup(archs, folder, Console(file=stream, width=80), compiler)
    return stream.getvalue().splitlines(), compiler


def test_warmup_prints_every_kernel_and_fills_the_cache(tmp_path: Path) -> None:
    lines, compiler = printed(["90a", "sm_90a", "gfx942"], tmp_path)
    for kernel in _native.kernel_arguments():
        (nvidia,) = [line.split() for line in lines if line.startswith(f"{kernel} ") and "sm_90a" in line]
        assert nvidia == [kernel, "sm_90a", "111", "222", "333", "0.12", "compiled"]
        (amd,) = [line.split() for line in lines if line.startswith(f"{kernel} ") and "gfx942" in line]
        assert amd == [kernel, "gfx942", "-", "-", "-", "0.12", "compiled"]
    assert str(tmp_path) in lines[-1] and "counting 1.0" in lines[-1]
    first = len(compiler.asked)
    assert first == len(set(compiler.asked))  # 90a and sm_90a are one
    lines, compiler = printed(["sm_90a", "gfx942", "sm_80"], tmp_path)
    assert {arch for _, arch in compiler.asked} == {"sm_80"} and 2 * len(compiler.asked) == first
    assert sum(line.endswith(" cached") for line in lines) == 2 * len(_native.kernel_arguments())


def test_warmup_as_json_has_the_same_numbers(tmp_path: Path) -> None:
    stream = io.StringIO()
    run_warmup(["sm_90a", "gfx942"], tmp_path, Console(file=stream, width=80), NamingCompiler(), as_json=True)
    found = json.loads(stream.getvalue())
    assert found["compiler"] == "counting 1.0" and found["folder"].startswith(str(tmp_path))
    rows = {(row["kernel"], row["arch"]): row for row in found["kernels"]}
    for kernel in _native.kernel_arguments():
        row = rows[kernel, "sm_90a"]
        assert (row["registers"], row["shared_bytes"], row["spilled_bytes"]) == (111, 222, 333)
        assert row["cached"] is False and row["seconds"] == 0.125 and rows[kernel, "gfx942"]["registers"] is None


def test_warmup_checks_names_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="hopper"):
        printed(["sm_90a", "hopper"], tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_warmup_takes_the_gpus_that_are_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupy_driver, "available", lambda: (True, "two of them"))
    monkeypatch.setattr(cupy_driver, "architectures", lambda: ["sm_80", "sm_90a"])
    _, compiler = printed([], tmp_path)
    assert {arch for _, arch in compiler.asked} == {"sm_80", "sm_90a"}
    monkeypatch.setattr(cupy_driver, "available", lambda: (False, "no device visible"))
    with pytest.raises(UcclEpError, match=r"no device visible.*--arch sm_80"):
        printed([], tmp_path)


def test_warmup_command_says_what_to_install(tmp_path: Path) -> None:
    """As a user without CuPy sees it: one line and status 2, no trace."""
    hide = "import sys; sys.modules['cupy'] = None; sys.modules['cupy.cuda'] = None; "
    program = hide + "sys.argv = ['uccl-ep', 'warmup', '--arch', 'sm_90a']; from uccl_ep.cli import main; main()"
    env = {**os.environ, "UCCL_EP_CACHE_DIR": str(tmp_path), "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50, env=env, cwd=ROOT
    )
    assert done.returncode == 2
    assert "pip install 'cupy-cuda13x>=14'" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.compile
@pytest.mark.timeout(120)
def test_warmup_command_compiles_everything(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "uccl_ep", "warmup", "--arch", "sm_90a", "--cache-dir", str(tmp_path)]
    for state in ("compiled", "cached"):
        done = subprocess.run(command, capture_output=True, text=True, timeout=110, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count(f" {state}\n") == len(_native.kernel_arguments())
    assert len(list(tmp_path.glob("*.kernel"))) > 1
