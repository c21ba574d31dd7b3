"""MkDocs calls these while it builds the site: generated pages and pictures are added."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:  # MkDocs loads this file by its path
    sys.path.insert(0, str(ROOT))

from docs.generate.imported import TITLES, integrators  # noqa: E402 - after the path
from docs.generate.pages import drawn_files, fill, generated_files  # noqa: E402


def on_config(config: Any) -> Any:
    """Adds a page for each integrator to the section of mkdocs.yml that has `integrators/index.md`."""
    for entry in config.nav or []:
        for pages in entry.values():
            if isinstance(pages, list) and "integrators/index.md" in pages:
                named = [{TITLES[page]: page} if page in TITLES else page for page in integrators()]
                pages.extend(entry for entry in named if entry not in pages)
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds what is generated."""
    from mkdocs.structure.files import File  # type: ignore[import-not-found,unused-ignore]

    for path, content in {**generated_files(), **drawn_files()}.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Puts generated parts into pages."""
    return fill(markdown)
