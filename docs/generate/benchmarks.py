"""The figures of the site, from the JSON files in bench/results and from nowhere else."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from bench import flame_picture
from bench.device import render
from docs.generate.markdown import table
from uccl_ep.tools.bench.plots import draw
from uccl_ep.tools.figures import THEMES

ROOT = Path(__file__).resolve().parents[2]
_NOTHING = (
    "**Nothing has been measured into `bench/results` yet**, so this page has no figure. `make bench` measures on your "
    "machine and leaves its JSON in `build/bench/results`.\n"
)
_MOST_COLUMNS = 8
_FINGERPRINT = ("machine", "fingerprint")


def results(folder: Path = ROOT / "bench/results") -> dict[str, Any]:
    """Every JSON file below the folder, by its path in it. A file that cannot be read is an error, never left out."""
    paths = sorted(folder.rglob("*.json"))
    return {path.relative_to(folder).as_posix(): json.loads(path.read_text(encoding="utf-8")) for path in paths}


def benchmark_tables(folder: Path = ROOT / "bench/results") -> str:
    """First what `uccl-ep bench render` makes of the files that it knows, then a section for each other file."""
    found = results(folder)
    if not found:
        return _NOTHING
    known = _known_kinds()
    ours = {name: content for name, content in found.items() if _kind(content) in known}
    checks = [name for name, content in found.items() if _kind(content) == "device_check"]
    others = [name for name in found if name not in ours and name not in checks]
    parts = [_checked(name, found[name]) for name in reversed(checks)]  # the newest first
    parts += [_rendered(ours)] if ours else []
    return "\n\n".join(parts + [_section(name, found[name]) for name in others])


def pictures(folder: Path = ROOT / "bench/results") -> dict[str, str]:
    """File name -> SVG text of what can be drawn of the results, each in each theme.

    Raises:
        NotSupported: matplotlib is not installed.
    """
    found = list(results(folder).values())
    drawn: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for theme in THEMES:
            paths = draw(
                [each for each in found if _kind(each) in _known_kinds()], Path(scratch), f"-{theme}.svg", theme
            )
            for flame in (each for each in found if _kind(each) == "flame"):
                paths.append(Path(scratch) / f"flame-{flame['options']['mode']}-{theme}.svg")
                flame_picture.draw(flame, paths[-1], theme)
            drawn |= {path.name: path.read_text(encoding="utf-8") for path in paths}
    return drawn


def _kind(content: Any) -> str:
    return str(content.get("benchmark", "")) if isinstance(content, dict) else ""


def _known_kinds() -> set[str]:
    """Kinds of results that `uccl-ep bench render` has a table for; none without torch, which it needs."""
    try:
        from uccl_ep.tools.bench.render import TABLES
    except ImportError:
        return set()
    return set(TABLES)


def _checked(name: str, content: dict[str, Any]) -> str:
    """A run of bench/device_check.sh, as that prints it."""
    return f"### `bench/results/{name}`\n\n```text\n{render.render(content)}\n```"


def _rendered(found: dict[str, Any]) -> str:
    from uccl_ep.tools.bench.render import SOURCE, markdown

    text = markdown([{**content, SOURCE: name} for name, content in found.items()])
    return text.replace("\n## ", "\n### ") + "\n"


def _section(name: str, content: Any) -> str:
    parts = [f"### `bench/results/{name}`\n"]
    if not isinstance(content, dict):
        content = {"rows": content}
    for key in _FINGERPRINT:
        if isinstance(content.get(key), dict):
            parts.append("Machine: " + "; ".join(_pairs(content[key])) + ".\n")
    plain = {key: value for key, value in content.items() if _scalar(value)}
    if plain:
        parts.append(
            table(["field", "value"], [[key.replace("_", " "), _shown(value)] for key, value in plain.items()])
        )
    for key, value in content.items():
        if key not in _FINGERPRINT and key not in plain:
            parts += _tables(key, value)
    return "\n".join(parts)


def _tables(key: str, value: Any) -> list[str]:
    """Lists of objects are tables, objects of plain values too; what is nested deeper is named and left in its file."""
    title = f"**{key.replace('_', ' ')}**\n"
    if isinstance(value, dict) and value and all(_scalar(item) for item in value.values()):
        return [title, table(["field", "value"], [[str(k).replace("_", " "), _shown(v)] for k, v in value.items()])]
    rows = list(value.values()) if isinstance(value, dict) else value
    if isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows):
        columns = [k for k in rows[0] if any(k in row and _scalar(row[k]) for row in rows)][:_MOST_COLUMNS]
        if columns:
            shown = [[_shown(row.get(column, "")) for column in columns] for row in rows]
            return [title, table([column.replace("_", " ") for column in columns], shown)]
    return [f"{title.strip()}: {_size(value)}, in the file.\n"]


def _pairs(fields: dict[str, Any]) -> list[str]:
    return [
        f"{key.replace('_', ' ')} {_shown(value)}" for key, value in fields.items() if _scalar(value) and value != ""
    ]


def _scalar(value: Any) -> bool:
    return isinstance(value, (str, int, float, bool)) or value is None


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
    return str(value) if _scalar(value) else _size(value)


def _size(value: Any) -> str:
    return f"{len(value)} values" if isinstance(value, (list, dict)) else str(value)
