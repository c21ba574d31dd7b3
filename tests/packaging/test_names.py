"""The name of the distribution: what pyproject.toml says, what is installed, and what pages and messages tell people.

No index has a release, so whoever asks one for `uccl-ep` would be given somebody else's. With an extra
(`pip install 'uccl-ep[metrics]'`) pip keeps what is installed and adds what the extra wants.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs.generate.markdown import blocks
from uccl_ep.drop_in.names import TOP_LEVEL

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/pages/getting_started.md"
TEXTS = ("docs", "uccl_ep", "docker", "tests/integrations", "README.md", "CONTRIBUTING.md", "SECURITY.md")
INSTALL = re.compile(r"pip install ([^\n`#;&|]*)")


def project(folder: str = ".") -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def told() -> dict[str, str]:
    """The page's table: what it calls a distribution -> what that is imported as."""
    rows = re.findall(r"^\| (`.+?) \| (.+?) \| .+ \|$", PAGE.read_text(encoding="utf-8"), re.M)
    return dict(rows)


def advice() -> Iterator[tuple[Path, str]]:
    """Each `pip install` in pages, help and messages, with its arguments."""
    for text in TEXTS:
        top = ROOT / text
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            if path.name.startswith("test_"):
                continue  # says what must not be said
            if path.suffix in {".md", ".py", ".sh", ".yaml", ".txt"} or path.name.startswith("Dockerfile"):
                for arguments in INSTALL.findall(path.read_text(encoding="utf-8")):
                    yield path.relative_to(ROOT), arguments


def from_an_index(arguments: str) -> bool:
    """Whether pip would look our name up although nothing of ours is installed, or to replace what is."""
    names = re.findall(r"(?<![\w./-])uccl[-_.]ep(?![\w/-])(\\*\[)?", arguments)
    return any(not extra for extra in names) or (
        bool(names) and bool(re.search(r"--(upgrade|force-reinstall)|-U", arguments))
    )


def test_names_of_the_project_are_those_that_the_page_tells() -> None:
    names = told()
    assert project()["name"] == "uccl-ep" and names["`uccl-ep`"] == "`uccl_ep`"
    beside = project("docker/deep_ep")
    imports = re.findall(r"`(\w+)`", names[f"`{beside['name']}` (`docker/deep_ep` here)"])
    assert {*imports, "nixl_ep"} == set(TOP_LEVEL)  # only the hook answers that one
    assert beside["version"] == project()["version"] and beside["dependencies"] == [f"uccl-ep>={project()['version']}"]
    assert "**The name is not settled.**" in PAGE.read_text(encoding="utf-8")


def test_names_of_what_is_installed_are_the_projects() -> None:
    about = importlib.metadata.metadata("uccl-ep")
    assert about["Name"] == "uccl-ep" and about["Version"] == project()["version"]
    assert about["Summary"] == project()["description"]
    (command,) = [one for one in importlib.metadata.entry_points(group="console_scripts") if one.name == "uccl-ep"]
    assert command.value == project()["scripts"]["uccl-ep"]


def test_names_nobody_is_told_to_ask_an_index_for_us() -> None:
    found = list(advice())
    assert len(found) > 20
    assert [one for one in found if from_an_index(one[1])] == []


def test_names_extras_that_are_told_exist() -> None:
    extras = project()["optional-dependencies"]
    named = {extra for _, arguments in advice() for extra in re.findall(r"(?:uccl-ep|\.)\\*\[([\w-]+)\\*\]", arguments)}
    assert "cuda13" in named and named <= set(extras)


@pytest.mark.parametrize(
    "arguments, is_asked",
    [
        ("uccl-ep", True),
        ("-q uccl_ep==0.1.0", True),
        ("--upgrade 'uccl-ep[metrics]'", True),
        ("'uccl-ep[metrics]'", False),
        ("./uccl-ep", False),
        ("'./uccl-ep[cuda13]'", False),
        (". transformers", False),
        ("uccl-ep-deep-ep", False),
    ],
)
def test_names_tell_an_index_from_a_checkout(arguments: str, is_asked: bool) -> None:
    assert from_an_index(arguments) == is_asked


def test_names_page_installs_a_checkout() -> None:
    commands = [block.body for block in blocks(PAGE.read_text(encoding="utf-8")) if "pip install" in block.body]
    assert commands and all("install ." in command for command in commands)
