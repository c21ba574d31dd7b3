"""What pages name exists: pages and anchors that they link to, variables, commands, options, files, generated parts."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

import pytest

from docs.generate.imported import integrators
from docs.generate.imported import pages as imported
from docs.generate.markdown import blocks, without_blocks
from docs.generate.pages import PARTS, all_pages, drawn_files, fill, generated_files, written_pages
from tests.house.test_words import BANS
from uccl_ep import Buffer
from uccl_ep.settings import describe

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"!?\[[^\]\n]*\]\((?P<target>[^)\s]+)\)")


def anchors(markdown: str) -> set[str]:
    """As MkDocs makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", without_blocks(markdown), re.M)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower())).strip("-") for heading in headings}


def broken_links(pages: dict[str, str], others: set[str]) -> list[str]:
    found = []
    for page, text in pages.items():
        for match in LINK.finditer(without_blocks(text)):
            target, _, anchor = match["target"].partition("#")
            if re.match(r"[a-z]+:", match["target"]):
                continue
            place = posixpath.normpath(posixpath.join(posixpath.dirname(page), target)) if target else page
            if place not in pages and place not in others:
                found.append(f"{page}: {match['target']} leads nowhere")
            elif anchor and place in pages and anchor not in anchors(pages[place]):
                found.append(f"{page}: {place} has no heading #{anchor}")
    return found


def test_docs_links_lead_somewhere() -> None:
    pictures = {f"pictures/{path.name}" for path in (ROOT / "docs/pages/pictures").iterdir()}
    assert not broken_links(all_pages(), set(generated_files()) | set(drawn_files()) | pictures)


def test_docs_broken_links_are_found() -> None:
    pages = {"a.md": "[x](b.md#two-words) [y](sub/c.md)", "b.md": "# Two words!\n"}
    assert broken_links(pages, set()) == ["a.md: sub/c.md leads nowhere"]
    assert broken_links({"a.md": "[x](#one)\n\n```text\n# One\n```\n"}, set()) == ["a.md: a.md has no heading #one"]


def test_docs_every_page_is_in_the_navigation() -> None:
    """The integrators' pages are added by docs/hooks.py."""
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1]
    named = set(re.findall(r"[\w/]+\.md", nav))
    assert named == set(all_pages()) - set(integrators())


def test_docs_variables_exist() -> None:
    known = {row.name for row in describe()}
    outside = {"UCCL_EP_REQUIRE_TOOLS", "UCCL_EP_TEST_DEPTH", "UCCL_EP_FUZZ_SECONDS"}  # the tests' own
    for page, text in all_pages().items():
        named = set(re.findall(r"UCCL_EP_[A-Z_]*[A-Z]", text)) - outside
        assert named <= known, (page, named - known)


def test_docs_tuning_has_every_variable() -> None:
    rows = re.findall(r"^\| `(UCCL_EP_\w+)` \|", all_pages()["tuning.md"], re.M)
    assert sorted(rows) == sorted(row.name for row in describe())


def command_names() -> dict[str, set[str]]:
    """Command -> its options, from the commands' page."""
    sections = re.split(r"^## ", all_pages()["commands.md"], flags=re.M)[1:]
    return {s.split("\n")[0].removeprefix("uccl-ep "): set(re.findall(r"(?<![\w-])--[\w-]+", s)) for s in sections}


CALL = re.compile(r"(?:`|^)(?:[A-Z_]+=\S+ )*uccl-ep ([a-z][\w-]*)((?: [^`\n|]*)?)", re.M)  # in code, not in prose


def test_docs_commands_and_options_exist() -> None:
    commands = command_names()
    assert {"env", "demo", "bench", "run", "conformance"} <= set(commands)
    for page in (*written_pages(), "project/contributing.md", "project/changelog.md"):
        for name, rest in CALL.findall(all_pages()[page]):
            assert name in commands, f"{page}: there is no `uccl-ep {name}`"
            before = rest.split(" -- ")[0]
            unknown = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", before)) - commands[name] - {"--help"}
            assert not unknown or name == "bench", f"{page}: `uccl-ep {name}` has no {unknown}"


PATH = re.compile(r"`((?:uccl_ep|proxy|kernels|tests|bench|docs|docker|cmake)/[\w./-]*\w/?)`")


def test_docs_files_exist() -> None:
    sources = {page: (ROOT / source).parent for source, page in imported().items()}
    for page, text in all_pages().items():
        places = {ROOT, sources.get(page, ROOT)}  # a folder's README names what is in it
        for path in PATH.findall(without_blocks(text)):
            if "mynet" not in path and page != "comparison.md":  # CONTRIBUTING's example; other repositories
                found = any((place / path).exists() or list(place.glob(f"{path}.*")) for place in places)
                assert found, f"{page}: {path}"


def test_docs_parts_are_filled() -> None:
    for page, text in all_pages().items():
        assert "<!-- generated:" not in text, page
    asked = {name for text in written_pages().values() for name in re.findall(r"<!-- generated: ([\w-]+) -->", text)}
    assert asked == set(PARTS)
    with pytest.raises(KeyError):
        fill("<!-- generated: nonsense -->")


def test_docs_nobody_writes_what_is_generated() -> None:
    assert not set(written_pages()) & set(generated_files())
    assert set(imported().values()) <= set(generated_files())


def test_docs_pages_begin_with_a_title() -> None:
    for page, text in all_pages().items():
        assert re.match(r"(---\n.*?\n---\n\n)?# \S", text, re.S), page
        titles = [line for line in without_blocks(text).splitlines() if line.startswith("# ")]
        assert len(titles) == 1, (page, titles)


def test_docs_pages_fit_the_house() -> None:
    everywhere = [ban for ban in BANS if ".ci" in ban.folders]
    assert len(everywhere) >= 2
    for page, text in all_pages().items():
        for ban in everywhere:
            assert not ban.pattern.search(text), (page, ban.why, ban.pattern.search(text))
    for page, text in written_pages().items():
        prose = [line for line in without_blocks(text).splitlines() if not line.startswith("|")]
        assert max(map(len, prose)) <= 125, (page, max(prose, key=len))
        assert all(block.body.strip() for block in blocks(text)), page


def test_docs_api_page_shows_every_call_of_buffer() -> None:
    shown = re.findall(r"^::: uccl_ep\.buffer\.Buffer\.(\w+)$", written_pages()["api/buffer.md"], re.M)
    calls = {
        name
        for name in dir(Buffer)
        if not name.startswith("_") and getattr(getattr(Buffer, name), "__name__", "") == name
        if not hasattr(getattr(Buffer, name), "refused")
    }
    assert calls, "nothing was found"
    assert sorted(shown) == sorted(calls), "docs/pages/api/buffer.md lists each once, by mode"
