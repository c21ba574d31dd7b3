"""`uccl-ep run`: what is executed with which environment, and whole programs with their children."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from uccl_ep import InvalidArgument
from uccl_ep.drop_in import run

ROOT = str(Path(run.__file__).parents[2])


def uccl_ep_run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("UCCL_EP_", "PYTHON"))}
    command = [sys.executable, "-m", "uccl_ep", "run", *arguments]
    return subprocess.run(
        command, env={**inherited, "PYTHONPATH": ROOT, **environment}, capture_output=True, text=True, timeout=50
    )


def test_run_chooses_what_to_execute(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    assert run.command_line([str(script), "--steps", "3"]) == [sys.executable, str(script), "--steps", "3"]
    assert run.command_line(["-m", "json.tool", "-h"]) == [sys.executable, "-m", "json.tool", "-h"]
    assert run.command_line(["-c", "pass"]) == [sys.executable, "-c", "pass"]
    assert run.command_line(["env", "-0"])[1:] == ["-0"] and os.path.isabs(run.command_line(["env"])[0])
    for wrong, words in [
        ([], "there is nothing to run"),
        ([str(tmp_path / "no.py")], "no script .*no.py in "),
        (["no-such"], "no program no-such on PATH or beside "),
    ]:
        with pytest.raises(InvalidArgument, match=rf"{words}.*Usage: uccl-ep run -- script.py"):
            run.command_line(wrong)


def test_run_finds_programs_beside_its_own_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that is not activated has its torchrun there, and not on PATH."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "path").mkdir()
    for program in (tmp_path / "bin/torchrun", tmp_path / "bin/other", tmp_path / "path/other"):
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin/python"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert run.command_line(["torchrun", "-h"]) == [str(tmp_path / "bin/torchrun"), "-h"]
    assert run.command_line(["other"]) == [str(tmp_path / "path/other")], "PATH comes first"


def test_run_puts_our_folder_first_and_keeps_the_rest() -> None:
    once = run.with_drop_in({"PYTHONPATH": "/a:/b", "HOME": "/h"})
    assert once["UCCL_EP_AS_DEEP_EP"] == "1" and once["HOME"] == "/h"
    assert once["PYTHONPATH"].split(":")[:3] == [str(run.SITE), "/a", "/b"]
    assert run.with_drop_in(once) == once  # a run within a run
    assert str(run.SITE) in run.with_drop_in({})["PYTHONPATH"]


def test_run_never_puts_the_folder_of_all_packages_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_package_folders", lambda: {ROOT})
    assert run.with_drop_in({})["PYTHONPATH"] == str(run.SITE)


def test_run_reaches_scripts_and_their_children(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import subprocess, sys\n"
        "import deep_ep\n"
        "print('here', deep_ep.__version__, sys.argv[1:], sys.path[0], __name__)\n"
        "code = 'import deep_ep; from deep_ep.utils import EventOverlap; print(\"child\", EventOverlap.__module__)'\n"
        "sys.exit(7 if subprocess.run([sys.executable, '-c', code]).returncode == 0 else 1)\n"
    )
    ended = uccl_ep_run("--", str(script), "--ranks", "4", "--help", PYTHONUNBUFFERED="1")
    assert ended.returncode == 7, ended.stderr
    assert "+uccl.ep." in ended.stdout and f"['--ranks', '4', '--help'] {tmp_path} __main__" in ended.stdout
    assert "child uccl_ep.events" in ended.stdout


def test_run_refusals_are_one_line() -> None:
    ended = uccl_ep_run("--", "no-such-program")
    assert ended.returncode == 2 and "Traceback" not in ended.stderr and "no-such-program" in ended.stderr
