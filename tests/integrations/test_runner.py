"""The runner itself: what versions.ini may say, how ranks that fail or hang end, and what a row needs to pass."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integrations import __main__ as runner
from tests.integrations import environment, launch, other_python
from tests.integrations.environment import Unavailable
from tests.integrations.launch import DriverFailed
from tests.integrations.report import TOLD, Row, Told, read, table, tell
from tests.integrations.versions import Integrator, integrators

NOBODY = Integrator("nobody", "uccl-ep-no-such-package", "1.0", "test_runner", (), False, 5)


def test_runner_versions_are_pinned() -> None:
    found = integrators()
    assert {"megatron", "transformers", "sglang", "torchtitan", "vllm"} <= {one.name for one in found}
    for one in found:
        assert all("==" in requirement for requirement in one.requirements), one
        module = Path(runner.__file__).parent / (one.driver.replace(".", "/") + ".py")
        assert module.is_file(), module
    newer = found[0].key(), Integrator(*[*vars(found[0]).values()][:2], "999", *[*vars(found[0]).values()][3:]).key()  # type: ignore[call-arg]
    assert newer[0] != newer[1]  # another pin, another environment


@pytest.mark.parametrize(
    "text", ["[a]\npackage = b", "[a]\nversion = 1", "[a]\npackage = b\nversion = 1\ncolour = red"]
)
def test_runner_refuses_versions_that_say_too_little_or_too_much(text: str) -> None:
    with pytest.raises(ValueError, match=r"\[a\]"):
        integrators(text)


def test_runner_rows_pass_only_within_the_tolerance() -> None:
    def row(error: float) -> Row:
        return Row("a", "1", "4", "path", error, 0.5)

    assert row(0.0).passed and row(0.5).passed
    assert not row(0.51).passed and not row(float("nan")).passed and not row(float("inf")).passed
    lines = table([row(0.25).cells(), row(1.0).cells()]).splitlines()
    assert lines[1].endswith("pass") and lines[2].endswith("FAIL")


def test_runner_reads_what_drivers_told(tmp_path: Path) -> None:
    file, row = tmp_path / TOLD, Row("a", "1", "4", "path", float("inf"), 0.5)
    assert read(file) == Told([], [], [])
    tell(file, "shim", "torch.cuda")
    tell(file, "row", row)
    tell(file, "note", "a note")
    assert read(file) == Told([row], ["torch.cuda"], ["a note"])


def processes(*codes: str) -> list[subprocess.Popen[bytes]]:
    return [subprocess.Popen([sys.executable, "-S", "-c", code]) for code in codes]


def test_runner_names_the_rank_that_failed_and_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_END_S", 0.2)
    ranks = processes("import time; time.sleep(60)", "raise SystemExit(7)")
    assert launch._wait(ranks, 30) == (1, "ended with status 7")
    assert all(process.poll() is not None for process in ranks)


def test_runner_ends_ranks_that_hang() -> None:
    ranks = processes("", "import time; time.sleep(60)")
    problem = launch._wait(ranks, 1.0)
    assert problem is not None and problem[0] == 1 and "1.0 s" in problem[1]
    assert all(process.poll() is not None for process in ranks)
    assert launch._wait(processes("", ""), 30) is None


def test_runner_gives_ranks_an_environment_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCCL_EP_TRANSPORT", "shared")
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    given = launch.environment_of(2, tmp_path, NOBODY)
    assert given["RANK"] == "2" and given["UCCL_EP_RANKS_PER_NODE"] == "2"
    assert "UCCL_EP_TRANSPORT" not in given and "PYTHONHASHSEED" not in given


@pytest.mark.timeout(200)  # an environment and pip: a minute where others use the cores
def test_runner_wheels_that_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCCL_EP_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(Unavailable, match="uccl-ep-no-such-package"):
        environment.python_of(NOBODY)
    assert list((tmp_path / "integrations").iterdir()) == []  # nothing half-made stays


def test_runner_asks_the_index_for_the_newest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[list[str]] = []

    def pip(command: list[str], **more: object) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        known = "uccl-ep-no-such-package (1.2)\nAvailable versions: 1.2, 1.0\n" if len(asked) < 4 else ""
        return subprocess.CompletedProcess(command, 0 if known else 1, known, "" if known else "no such thing")

    monkeypatch.setattr(environment.subprocess, "run", pip)
    newest = environment.newest_of(NOBODY)
    assert newest == replace(NOBODY, version="1.2") and newest.key() != NOBODY.key()
    assert "--python-version" not in asked[0] and asked[0][-1] == "uccl-ep-no-such-package"
    environment.newest_of(replace(NOBODY, python="3.999"))
    assert asked[1][asked[1].index("--python-version") + 1] == "3.999"

    monkeypatch.setattr(runner, "integrators", lambda: [NOBODY])
    monkeypatch.setattr(runner, "python_of", lambda integrator: Path(os.devnull))
    monkeypatch.setattr(runner, "launch", lambda one, python: Told([Row("a", one.version, "4", "p", 0.1, 0.5)], [], []))
    assert runner.main(["nobody", "--newest"]) == 0
    assert "newest on the index: 1.2, pinned: 1.0" in capsys.readouterr().out
    assert runner.main(["nobody", "--newest"]) == runner.STATUS_NOT_RUN
    assert "NOT RUN nobody 1.0: pip index versions uccl-ep-no-such-package: no such thing" in capsys.readouterr().out
    assert runner.main(["nobody"]) == 0 and len(asked) == 4  # pinned: nobody asks


@pytest.mark.parametrize(
    ("answer", "required", "status", "word"),
    [
        (Told([Row("a", "1", "4", "p", 0.1, 0.5)], [], []), "0", 0, "1 of 1 paths pass"),
        (Told([Row("a", "1", "4", "p", 0.9, 0.5)], [], []), "0", 1, "0 of 1 paths pass"),
        (Told([], [], []), "0", 1, "told nothing"),
        (DriverFailed("rank 3 broke", Told([], ["a shim"], [])), "0", 1, "rank 3 broke"),
        (Unavailable("no network"), "0", runner.STATUS_NOT_RUN, "NOT RUN megatron"),
        (Unavailable("no network"), "1", 1, "NOT RUN megatron"),
    ],
)
def test_runner_status_says_what_the_table_says(
    answer: object, required: str, status: int, word: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def launched(integrator: Integrator, python: Path) -> Told:
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Told)
        return answer

    monkeypatch.setenv("UCCL_EP_REQUIRE_TOOLS", required)
    monkeypatch.setattr(runner, "launch", launched)
    monkeypatch.setattr(runner, "python_of", lambda integrator: Path(os.devnull))
    assert runner.main(["megatron"]) == status
    assert word in capsys.readouterr().out


def integrator_of(**more: str) -> Integrator:
    fields = "\n".join(f"{name} = {value}" for name, value in {"package": "b", "version": "1", **more}.items())
    (one,) = integrators(f"[a]\n{fields}")
    return one


def test_runner_asks_for_another_python_only_where_this_one_is_too_old() -> None:
    newer, older = integrator_of(python="3.999"), integrator_of(python="3.2")
    assert newer.other_python == "3.999" and newer.by_name
    assert older.other_python == "" and not older.by_name
    assert integrator_of(optional="yes").by_name
    with pytest.raises(ValueError, match="python is 'new'"):
        integrator_of(python="new")


def test_runner_counts_a_python_that_is_not_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UCCL_EP_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(runner, "integrators", lambda: [integrator_of(python="3.999")])
    for required, status in (("0", runner.STATUS_NOT_RUN), ("1", 1)):
        monkeypatch.setenv("UCCL_EP_REQUIRE_TOOLS", required)
        assert runner.main(["a"]) == status
        said = capsys.readouterr().out
        assert "NOT RUN a 1: no Python 3.999 on this machine" in said and "1 integrators not run" in said
    assert runner.main([]) == 0  # nobody asked for it
    said = capsys.readouterr().out
    assert "NOT ASKED FOR a 1: wants Python 3.999" in said and "1 not asked for" in said


def test_runner_makes_what_lies_beneath_another_python_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[Path] = []

    def install(python: str, folder: Path) -> None:
        installed.append(folder)
        (folder / "lib" / "python3" / "site-packages").mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr(other_python, "_install", install)
    this = f"{sys.version_info[0]}.{sys.version_info[1]}"
    python, folder = other_python.beneath(this, tmp_path)
    assert python == Path(sys.executable) and other_python.site_of(folder).is_dir()
    assert other_python.beneath(this, tmp_path) == (python, folder) and installed == [folder]
    assert (tmp_path / f"{folder.name}.lock").is_file()  # of this environment only
    monkeypatch.setattr(other_python, "_native_key", lambda: "other sources")
    assert other_python.beneath(this, tmp_path) == (python, folder) and installed == [folder, folder]


@pytest.mark.slow
@pytest.mark.timeout(200)  # an environment and pip: a minute where others use the cores
def test_runner_says_what_could_not_be_installed_beneath(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_python, "TOOLS", ("uccl-ep-no-such-package",))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(other_python.NoSuchPython, match="uccl-ep-no-such-package"):
        other_python._install(sys.executable, tmp_path / "python")


def test_runner_refuses_strange_names() -> None:
    with pytest.raises(SystemExit, match="megatrom"):
        runner.chosen(["megatrom"], integrators())
    assert all(not one.by_name for one in runner.chosen([], integrators()))
