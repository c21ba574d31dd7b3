"""tests.tour.environments: a linked environment has what the wheel asks for and nothing else, and pip judges it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.tour import environments
from tests.tour.environments import NotInstalled, closure, link, linked, pack, requirements, run


def wheel_of(folder: Path, *asked: str) -> Path:
    """A wheel of nothing that depends on these."""
    path = folder / "nothing-1.0-py3-none-any.whl"
    said = "".join(f"Requires-Dist: {text}\n" for text in asked)
    info = "nothing-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: nothing\nVersion: 1.0\n{said}")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def names(asked: list[str]) -> set[str]:
    return {one.metadata["Name"].lower() for one in closure(asked)}


def test_tour_environment_requirements_are_those_of_the_wheel(tmp_path: Path) -> None:
    asked = ["rich>=13", 'nowhere-to-be-found; extra == "cuda"']
    assert requirements(wheel_of(tmp_path, *asked)) == asked
    assert requirements(wheel_of(tmp_path)) == []


def test_tour_environment_closure_follows_what_is_needed_and_no_more() -> None:
    assert {"rich", "pygments", "markdown-it-py", "mdurl"} == names(["rich>=13"])
    assert names(['rich; extra == "metrics"', "nowhere-to-be-found"]) == set()
    assert names(['rich; python_version < "3"']) == set()
    assert {"pytest", "pluggy"} <= names(["pytest"]) and "rich" not in names(["pytest"])
    assert names(["rich", "rich[jupyter]", "rich"]) >= names(["rich"])  # ends, and knows of extras


def test_tour_environment_links_what_lies_at_the_top(tmp_path: Path) -> None:
    assert link(closure(["rich", "typing_extensions"]), tmp_path) == 5
    assert (tmp_path / "rich").is_symlink() and (tmp_path / "typing_extensions.py").is_symlink()
    assert not (tmp_path / "pytest").exists() and not (tmp_path / "__pycache__").exists()
    ask = "import rich.console; print(rich.console.__file__)"
    command = [sys.executable, "-S", "-c", ask]
    done = subprocess.run(command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=50)
    assert done.stdout.startswith(str(tmp_path)), done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)  # two environments are made
def test_tour_environment_pip_judges_what_is_linked(tmp_path: Path) -> None:
    said = linked(wheel_of(tmp_path, "rich>=13"), tmp_path / "good", 250)
    assert "4 distributions linked" in said and "Successfully installed nothing-1.0" in said
    with pytest.raises(NotInstalled, match="nowhere-to-be-found"):
        linked(wheel_of(tmp_path, "rich>=13", "nowhere-to-be-found"), tmp_path / "bad", 250)


def test_tour_environment_commands_that_fail_say_what_they_printed() -> None:
    assert run(["sh", "-c", "echo $WHO"], 20, WHO="rank") == "rank\n"
    with pytest.raises(NotInstalled, match="status 3(.|\n)*no room"):
        run(["sh", "-c", "echo no room >&2; exit 3"], 20)
    with pytest.raises(NotInstalled, match="not done within"):
        run(["sleep", "20"], 0.1)


def test_tour_environment_packs_with_the_tools_of_this_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UCCL_EP_WHEEL", raising=False)
    seen: list[list[str]] = []

    def play(command: list[str], limit_s: float, **environment: str) -> str:
        assert environment["PATH"].startswith(str(Path(sys.executable).parent)) and limit_s > 0
        seen.append(command)
        (tmp_path / "uccl_ep-0.1.0-py3-none-any.whl").touch()
        return ""

    monkeypatch.setattr(environments, "run", play)
    assert pack(tmp_path).name == "uccl_ep-0.1.0-py3-none-any.whl"
    assert seen[0][:4] == [sys.executable, "-m", "pip", "wheel"] and "--no-build-isolation" in seen[0]
    monkeypatch.setenv("UCCL_EP_WHEEL", str(tmp_path / "given.whl"))
    assert pack(tmp_path) == (tmp_path / "given.whl").resolve() and len(seen) == 1
