"""What a build of the site adds to the pages that are written by hand: whole pages, pictures, and parts of pages.

A page asks for a part with `<!-- generated: NAME -->` on a line of its own; the names are those of PARTS.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path

from bench import combine_errors
from bench.device import estimates
from docs.generate import journey
from docs.generate.benchmarks import benchmark_tables, pictures
from docs.generate.builds import builds_table, moved_table, refused_table
from docs.generate.commands import commands_page
from docs.generate.imported import ROOT, imported_pages, table_of
from docs.generate.markdown import blocks
from docs.generate.memory import memory_table
from docs.generate.messages import network_table, refusal_table
from docs.generate.settings_table import settings_table, site_settings_table

PAGES = ROOT / "docs/pages"
KEPT_PICTURES = ("journey-1-light.svg", "journey-1-dark.svg")
"""The README shows them, so they are in the repository too: `python -m docs.generate.journey` writes them anew."""
_PART = re.compile(r"^<!-- generated: (?P<name>[\w-]+) -->$", re.M)


def _program() -> str:
    """The README's program, as a file to save."""
    (program,) = (b for b in blocks((ROOT / "README.md").read_text(encoding="utf-8")) if b.language == "python")
    return f'```python title="{program.body.split(":")[0].removeprefix("# ")}"\n{program.body}```'


def _integrator_table() -> str:
    return table_of((ROOT / "tests/integrations/README.md").read_text(encoding="utf-8"), "| feature |")


def _estimates() -> str:
    return estimates.tables(estimates.counted())


@functools.cache  # it takes seconds
def _combine_errors() -> str:
    return combine_errors.table(combine_errors.measure())


PARTS: dict[str, Callable[[], str]] = {
    "settings": settings_table,
    "builds": builds_table,
    "refused-names": refused_table,
    "site_settings": site_settings_table,
    "moved-arguments": moved_table,
    "refusals": refusal_table,
    "network-words": network_table,
    "benchmarks": benchmark_tables,
    "combine-errors": _combine_errors,
    "estimates": _estimates,
    "integrators": _integrator_table,
    "memory": memory_table,
    "program": _program,
}

SLOW_PARTS = ("refusals", "benchmarks", "combine-errors", "estimates")
"""Those that take seconds to make; they have no code that runs."""


def written_pages(folder: Path = PAGES) -> dict[str, str]:
    """The pages that are written by hand, by their path on the site, as they stand in the folder."""
    return {p.relative_to(folder).as_posix(): p.read_text(encoding="utf-8") for p in sorted(folder.rglob("*.md"))}


def generated_files() -> dict[str, str]:
    """Every file that the build adds, by its path on the site; pictures of figures are in `drawn_files`."""
    drawings = {f"pictures/{name}": text for name, text in journey.files().items() if name not in KEPT_PICTURES}
    return {"commands.md": commands_page(), **imported_pages(), **drawings}


def drawn_files() -> dict[str, str]:
    """Every picture of measured figures, by its path on the site; takes seconds to draw."""
    return {f"pictures/{name}": text for name, text in pictures().items()}


def fill(markdown: str, left_out: tuple[str, ...] = ()) -> str:
    """The page with its generated parts in place, but for those to leave out.

    Raises:
        KeyError: a part that PARTS does not have.
    """
    return _PART.sub(lambda match: "" if match["name"] in left_out else PARTS[match["name"]](), markdown)


@functools.cache  # it takes seconds
def all_pages() -> dict[str, str]:
    """Every page of the site as it is rendered, by its path."""
    return _pages(())


def pages_with_code() -> dict[str, str]:
    """Every page, by its path, with all code that runs: without SLOW_PARTS."""
    return _pages(SLOW_PARTS)


def _pages(left_out: tuple[str, ...]) -> dict[str, str]:
    added = {path: text for path, text in generated_files().items() if path.endswith(".md")}
    return {path: fill(text, left_out) for path, text in {**written_pages(), **added}.items()}
