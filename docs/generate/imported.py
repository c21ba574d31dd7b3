"""Pages of the site that live elsewhere in the repository, beside what they describe; their links are turned."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FIXED = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "tests/README.md": "project/tests.md",
    "uccl_ep/examples/README.md": "integrators/transformers.md",
    "uccl_ep/examples/launch/README.md": "guide/launchers.md",
    "uccl_ep/fabric/README.md": "networks/choice.md",
    "uccl_ep/fabric/docs/README.md": "networks/index.md",
}
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]\n]*)\]\((?P<target>[^)\s]+)\)")


def pages(root: Path = ROOT) -> dict[str, str]:
    """Path in the repository -> path on the site, for every page that is taken from elsewhere."""
    found = dict(_FIXED)
    for path in sorted((root / "uccl_ep/fabric/docs").glob("*.md")):
        found.setdefault(f"uccl_ep/fabric/docs/{path.name}", f"networks/{path.name}")
    for path in sorted((root / "tests/integrations").glob("*/README.md")):
        found[f"tests/integrations/{path.parent.name}/README.md"] = f"integrators/{path.parent.name}.md"
    return found


TITLES = {"integrators/transformers.md": "transformers models"}  # where a page's own title is a folder's name


def integrators(root: Path = ROOT) -> list[str]:
    """The site's pages of integrators, by name."""
    return sorted(page for page in pages(root).values() if page.startswith("integrators/"))


def imported_pages(root: Path = ROOT) -> dict[str, str]:
    """Path on the site -> Markdown."""
    homes = pages(root)
    return {
        page: turn_links((root / source).read_text(encoding="utf-8"), source, homes, root)
        for source, page in homes.items()
    }


def turn_links(markdown: str, source: str, homes: dict[str, str], root: Path = ROOT) -> str:
    """Relative links of a file: to another page of the site, or, for a file that is none, its path as text.

    A link that leads nowhere is left as it is, for the build to complain about.
    """

    def turn(match: re.Match[str]) -> str:
        text, target = match["text"], match["target"]
        path, hash_sign, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", target):
            return match.group()
        place = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        page = homes.get(place) or (place.removeprefix("docs/pages/") if place.startswith("docs/pages/") else "")
        if page:
            here = posixpath.dirname(homes[source])
            return f"[{text}]({posixpath.relpath(page, here or '.')}{hash_sign}{anchor})"
        if not os.path.exists(root / place):
            return match.group()
        return f"`{place}`" if text.strip("`") in {place, path} else f"{text} (`{place}`)"

    return _LINK.sub(turn, markdown)


def table_of(markdown: str, beginning: str) -> str:
    """The pipe table of a page whose first line begins so.

    Raises:
        ValueError: the page has no such table.
    """
    match = re.search(rf"^{re.escape(beginning)}.*(?:\n\|.*)+", markdown, re.M)
    if match is None:
        raise ValueError(f"no table that begins with {beginning!r}")
    return match.group() + "\n"
