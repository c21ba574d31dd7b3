"""CONTRIBUTING's transport in a day: its skeleton compiles against the contract, and what it names is there."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from docs.generate.markdown import blocks

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def compiles(text: str, folder: Path) -> str:
    """The compiler's complaints, "" for none."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("NOT RUN: no C++ compiler, so the example transport was not compiled")
    (folder / "mynet.cpp").write_text(text, encoding="utf-8")
    flags = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}", f"-I{ROOT / 'proxy'}"]
    done = subprocess.run([compiler, *flags, "mynet.cpp"], cwd=folder, capture_output=True, text=True, timeout=50)
    return "" if done.returncode == 0 else done.stderr or "failed"


def test_docs_transport_skeleton_compiles(tmp_path: Path) -> None:
    (skeleton,) = [block.body for block in blocks(TEXT) if block.language == "cpp"]
    complete = (
        skeleton + "\nuccl::Transport* make(const uccl::TransportSettings& s) { return new uccl::MynetTransport(s); }\n"
    )
    assert compiles(complete, tmp_path) == ""


def test_docs_transport_steps_name_what_exists() -> None:
    loopback = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "proxy/transport/loopback").glob("*.*"))
    for name in ("loopback_join", "LoopbackLane::take", "LoopbackLane::deliver"):
        assert name in TEXT and name in loopback
    checks = (ROOT / "tests/proxy/transport/test_transport.cpp").read_text(encoding="utf-8")
    count = len(re.findall(r"^OVER_FAMILIES\(", checks, re.M))
    assert f"{count} checks" in " ".join(TEXT.split())


def test_docs_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    for block in blocks(TEXT):
        for name in re.findall(r"^make ([a-z-]+)", block.body, re.M):
            assert name in targets | {"docs"}, name  # `docs` is added with this folder
