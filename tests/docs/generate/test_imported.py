"""Pages from elsewhere: all are there, and their links are the site's."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.generate.imported import ROOT, imported_pages, integrators, pages, table_of, turn_links

HOMES = {"a/b/README.md": "x/b.md", "a/c.md": "c.md"}


@pytest.mark.parametrize(
    ("link", "turned"),
    [
        ("[c](../c.md)", "[c](../c.md)"),
        ("[c](../c.md#part)", "[c](../c.md#part)"),
        ("[b](README.md)", "[b](b.md)"),
        ("[code](../code.py)", "code (`a/code.py`)"),
        ("[a/code.py](../code.py)", "`a/code.py`"),
        ("[`../code.py`](../code.py)", "`a/code.py`"),
        ("[own](#part)", "[own](#part)"),
        ("[web](https://example.org/a.md)", "[web](https://example.org/a.md)"),
        ("[gone](gone.md)", "[gone](gone.md)"),
        ("[page](../../docs/pages/tuning.md)", "[page](../tuning.md)"),
    ],
)
def test_docs_imported_links_are_turned(link: str, turned: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/code.py").write_text("", encoding="utf-8")
    assert turn_links(f"See {link}.", "a/b/README.md", HOMES, tmp_path) == f"See {turned}."


def test_docs_imported_pages_are_all_there() -> None:
    found = imported_pages()
    for source in ROOT.glob("uccl_ep/fabric/docs/*.md"):
        assert pages()[f"uccl_ep/fabric/docs/{source.name}"] in found
    for source in ROOT.glob("tests/integrations/*/README.md"):
        assert f"integrators/{source.parent.name}.md" in integrators()
    assert {"architecture.md", "project/contributing.md", "project/changelog.md"} <= set(found)
    assert len(set(pages().values())) == len(pages())


def test_docs_imported_tables() -> None:
    text = "words\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n| a2 | c |\n|---|---|\n"
    assert table_of(text, "| a |") == "| a | b |\n|---|---|\n| 1 | 2 |\n"
    with pytest.raises(ValueError, match="no table"):
        table_of(text, "| z |")
