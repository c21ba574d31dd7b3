"""Issue forms: each is a form, required answers are few, and whoever reports a fault is asked for `doctor --json`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="NOT RUN: no PyYAML to read issue forms with (make docs installs it)")
FOLDER = Path(__file__).resolve().parents[2] / ".github/ISSUE_TEMPLATE"
FORMS = sorted(path for path in FOLDER.glob("*.yml") if path.name != "config.yml")
KINDS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}


def read(path: Path) -> dict[str, Any]:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(form, dict)
    return form


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_docs_issue_forms_are_forms(path: Path) -> None:
    form = read(path)
    assert {"name", "description", "body"} <= set(form)
    ids = [part["id"] for part in form["body"] if part["type"] != "markdown"]
    assert len(ids) == len(set(ids)) and all(re.fullmatch(r"[\w-]+", name) for name in ids)
    for part in form["body"]:
        assert part["type"] in KINDS
        attributes = part["attributes"]
        assert attributes.get("label") or part["type"] == "markdown" and attributes["value"]
        if part["type"] == "dropdown":
            assert len(attributes["options"]) >= 2 and all(isinstance(o, str) for o in attributes["options"])


@pytest.mark.parametrize("name", ["bug", "slow"])
def test_docs_issue_forms_ask_for_the_doctor(name: str) -> None:
    (part,) = [part for part in read(FOLDER / f"{name}.yml")["body"] if part.get("id") == "doctor"]
    assert "uccl-ep doctor --json" in part["attributes"]["label"]
    assert part["attributes"]["render"] == "json" and part["validations"]["required"] is True


def test_docs_issue_forms_are_all_that_is_asked() -> None:
    assert [path.stem for path in FORMS] == ["bug", "slow", "wish"]
    assert read(FOLDER / "config.yml")["blank_issues_enabled"] is False
