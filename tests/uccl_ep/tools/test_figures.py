"""Figures: in the suffix's format, the same bytes each time, in both themes; without matplotlib the install line."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from uccl_ep.cli import app
from uccl_ep.errors import NotSupported
from uccl_ep.tools import figures


def line(figure: Any) -> None:
    axes = figure.subplots()
    axes.plot([1, 2, 3])
    axes.set_xlabel("step")


def test_figures_suffix_chooses_the_format_and_the_folder_is_made(tmp_path: Path) -> None:
    assert figures.available()
    for suffix, beginning in ((".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml")):
        path = figures.write(tmp_path / "new" / f"a{suffix}", (3, 2), line)
        assert path.read_bytes().startswith(beginning)
    with pytest.raises(ValueError, match="xyz"):
        figures.write(tmp_path / "a.xyz", (3, 2), line)


@pytest.mark.parametrize("theme", figures.THEMES)
def test_figures_themes_differ_in_ink_and_are_the_same_each_time(tmp_path: Path, theme: str) -> None:
    texts = [figures.write(tmp_path / f"{n}" / "a.svg", (3, 2), line, theme).read_text() for n in range(2)]
    assert texts[0] == texts[1]
    assert ">step</text>" in texts[0]  # searchable, and in the page's own size
    inks = {"light": "#202124", "dark": "#e3e3e3"}
    assert inks.pop(theme) in texts[0] and next(iter(inks.values())) not in texts[0]


def test_figures_without_matplotlib_say_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(NotSupported, match=r"pip install 'matplotlib>="):
        figures.write(tmp_path / "a.png", (3, 2), line)


def test_figures_are_refused_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert figures.check(None) is None and figures.check(tmp_path / "a.png") == tmp_path / "a.png"
    monkeypatch.setattr(figures, "available", lambda: False)
    assert figures.check(None) is None
    with pytest.raises(NotSupported, match="pip install 'matplotlib>="):
        figures.check(tmp_path / "a.png")
    result = CliRunner().invoke(app, ["bench", "memory", "--plot", str(tmp_path / "a.png")])
    assert isinstance(result.exception, NotSupported) and not result.output
