"""The workflow on GitHub and `.ci/run` have the same sections: none is forgotten, none is made up."""

from __future__ import annotations

import re
import subprocess

from tests.house.source import ROOT

_FIRST = {"machine", "setup"}  # what every job of the workflow begins with


def sections_of_script(text: str) -> list[str]:
    return re.findall(r"^ *(?:section|by_turns \d) ([\w-]+) \d+ ", text, re.MULTILINE)


def sections_of_workflow(text: str) -> list[str]:
    matrix = text.split("        sections:\n", 1)[1].split("    steps:\n", 1)[0]
    return [name for line in matrix.splitlines() for name in line.strip(" -").split()]


def test_house_ci_workflow_runs_every_section_once() -> None:
    script = sections_of_script((ROOT / ".ci/run").read_text(encoding="utf-8"))
    workflow = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    assert sorted([*_FIRST, *sections_of_workflow(workflow)]) == sorted(script)
    assert ".ci/run machine setup ${{ matrix.sections }}" in workflow


def test_house_ci_every_turn_comes() -> None:
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    modulus = re.findall(r"turn % (\d)", script)
    turns = {int(turn) for turn in re.findall(r"^ *by_turns (\d) ", script, re.MULTILINE)}
    assert modulus == ["4"] and turns == {1, 2, 3, 4}


def test_house_ci_refuses_a_section_that_is_none() -> None:
    done = subprocess.run([ROOT / ".ci/run", "doctor", "no-such"], capture_output=True, text=True, timeout=20)
    sections = " ".join(sections_of_script((ROOT / ".ci/run").read_text(encoding="utf-8")))
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == f"there is no section 'no-such'; allowed: all, or any of: {sections}\n"


def test_house_ci_reads_both_forms() -> None:
    assert sections_of_script("section a 60 make a\n  by_turns 2 b-c 9 env X=1 make\n# section d 5 no\n") == [
        "a",
        "b-c",
    ]
    assert sections_of_workflow("x\n        sections:\n          - a b\n          - c\n    steps:\n - d\n") == [
        "a",
        "b",
        "c",
    ]
