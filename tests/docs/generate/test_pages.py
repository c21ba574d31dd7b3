"""The list of what a build adds: pages, pictures, and the parts that pages ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.generate.pages import PARTS, all_pages, fill, generated_files, written_pages


def test_docs_generated_files_have_content() -> None:
    found = generated_files()
    assert "commands.md" in found and "pictures/journey-2-dark.svg" in found
    assert all(len(text) > 100 for text in found.values())


@pytest.mark.parametrize("name", sorted(PARTS))
def test_docs_generated_parts_are_filled_in(name: str) -> None:
    filled = fill(f"before\n\n<!-- generated: {name} -->\n\nafter\n")
    assert filled.startswith("before\n\n") and filled.endswith("\n\nafter\n") and "generated:" not in filled
    assert len(filled) > 80


def test_docs_written_pages_are_read_from_their_folder(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/a.md").write_text("# A\n", encoding="utf-8")
    assert written_pages(tmp_path) == {"sub/a.md": "# A\n"}
    assert set(written_pages()) < set(all_pages())
