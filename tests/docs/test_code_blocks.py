"""Every Python and bash block of the site runs. Python blocks of a page share a namespace, in order; a block whose
title is a file name is saved beside; bash runs in the page's folder. One that cannot run here says what it takes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from docs.generate.markdown import Block, blocks
from docs.generate.pages import PARTS, SLOW_PARTS, pages_with_code

ROOT = Path(__file__).resolve().parents[2]
NOT_RUN = (  # titles that tell readers what a block takes; CI runs most of them in a section of their own
    "takes about 3 minutes",
    "takes minutes",
    "on two hosts",
    "while a job runs",
    "on a machine with a GPU",
    "with your transport",
    "installs packages",
)
RUN = {"python", "bash", "sh", "console", "shell"}
SHOWN = {"text", "cpp", "json", "yaml", "toml"}
STARTS_RANKS = re.compile(r"torchrun|python |uccl-ep (bench|demo|conformance|simulate|top)")
PAGES = {path: blocks(text) for path, text in pages_with_code().items()}  # at import: what to collect


def runs(block: Block) -> bool:
    return block.language in RUN and block.title not in NOT_RUN


def is_file(block: Block) -> bool:
    return bool(re.fullmatch(r"[\w-]+\.py", block.title))


def cases(language: str) -> list[Any]:
    """One parameter a page for Python, whose blocks follow each other; one a block for bash."""
    found = []
    for path, all_blocks in sorted(PAGES.items()):
        if language == "python" and any(b.language == "python" and runs(b) and not is_file(b) for b in all_blocks):
            found.append(pytest.param(path, id=path))
        for block in all_blocks if language == "bash" else []:
            if runs(block) and block.language != "python":
                marks = [pytest.mark.timeout(300)]  # a command loads torch; a guard on a busy machine
                marks += [pytest.mark.slow] if STARTS_RANKS.search(block.body) else []
                found.append(pytest.param(path, block, id=f"{path}:{block.line}", marks=marks))
    return found


@pytest.mark.parametrize("page", cases("python"))
def test_docs_python_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "docs_example"}
    for block in PAGES[page]:
        if block.language == "python" and runs(block) and not is_file(block):
            code = compile("\n" * block.line + block.body, page, "exec")  # lines of a trace are the page's
            exec(code, names)  # noqa: S102 - our own documentation


@pytest.mark.mostly_slow(quick=2)
@pytest.mark.parametrize(("page", "block"), cases("bash"))
def test_docs_bash_blocks_run(page: str, block: Block, tmp_path: Path) -> None:
    for other in PAGES[page]:
        if is_file(other):
            (tmp_path / other.title).write_text(other.body, encoding="utf-8")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.body],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, (
        f"{page}, line {block.line}:\n{block.body}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    )


def environment(folder: Path) -> dict[str, str]:
    """This Python first on the path, with commands of the same names as an installation makes."""
    programs = folder / ".programs"
    programs.mkdir()
    for name, module in (("uccl-ep", "uccl_ep"), ("torchrun", "torch.distributed.run")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n', encoding="utf-8")
        (programs / name).chmod(0o755)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("UCCL_EP_")}
    return clean | {
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "UCCL_EP_TIMEOUT_S": "60",
    }


def test_docs_blocks_say_what_they_are() -> None:
    wrong = []
    for path, all_blocks in PAGES.items():
        written = (ROOT / "docs/pages" / path).is_file() or path.startswith("project/con")
        for block in all_blocks:
            where = f"{path}:{block.line}"
            if written and block.language not in RUN | SHOWN:
                wrong.append(f"{where}: language {block.language!r} is none of {sorted(RUN | SHOWN)}")
            if block.title not in NOT_RUN and not is_file(block) and block.title:
                wrong.append(f"{where}: the title {block.title!r} is no file and none of {NOT_RUN}")
    assert not wrong, "\n".join(wrong)


def test_docs_slow_parts_have_no_code_that_runs() -> None:
    for name in SLOW_PARTS:
        assert {block.language for block in blocks(PARTS[name]())} <= SHOWN, name


def test_docs_most_blocks_run() -> None:
    """A page cannot be made green by marking everything as not run."""
    labelled = [block for all_blocks in PAGES.values() for block in all_blocks if block.language in RUN]
    assert sum(map(runs, labelled)) > len(labelled) / 2
    assert len(cases("python")) >= 5 and len(cases("bash")) >= 5


def test_docs_a_wrong_block_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PAGES, "wrong.md", blocks("```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n"))
    with pytest.raises(AssertionError):
        test_docs_python_blocks_run("wrong.md", tmp_path, monkeypatch)
    with pytest.raises(AssertionError, match="line 1"):
        test_docs_bash_blocks_run("wrong.md", blocks("```bash\nfalse | true\n```\n")[0], tmp_path)
