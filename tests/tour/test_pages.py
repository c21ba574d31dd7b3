"""tests.tour.pages: each page becomes a picture, or is counted as not made, or fails the tour when it is blank."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from docs import screenshots
from tests.tour.pages import take_pages
from tests.tour.transcript import Transcript

PAGES = len(screenshots.PAGES)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    for name in screenshots.PAGES:
        (folder / name).write_text("<html>", encoding="utf-8")
    return folder


def play_browser(monkeypatch: pytest.MonkeyPatch, dot: bool) -> None:
    def take(browser: str, page: Path, picture: Path) -> None:
        assert browser == "chromium" and page.is_file()
        image = Image.new("RGB", (40, 30), (255, 255, 255))
        image.putpixel((3, 3), (0, 0, 0) if dot else (255, 255, 255))
        image.save(picture, "PNG")

    monkeypatch.setattr(screenshots, "find_browser", lambda: "chromium")
    monkeypatch.setattr(screenshots, "take", take)


def text_of(transcript: Transcript) -> str:
    return (transcript.folder / "transcript.md").read_text(encoding="utf-8")


def test_tour_pages_become_pictures(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play_browser(monkeypatch, dot=True)
    transcript = Transcript(tmp_path / "out")
    assert take_pages(transcript, site) == [] and transcript.not_made == 0
    assert len(transcript.pictures) == PAGES and all(path.is_file() for path in transcript.pictures)
    assert "![docs-index](docs-index.png)" in text_of(transcript)


def test_tour_pages_that_are_blank_fail(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play_browser(monkeypatch, dot=False)
    failed = take_pages(Transcript(tmp_path / "out"), site)
    assert len(failed) == PAGES and "index.html: all pixels of its picture are alike" in failed

    def fail(*_: object) -> None:
        raise screenshots.NoPicture("index.html: killed")

    monkeypatch.setattr(screenshots, "take", fail)
    assert take_pages(Transcript(tmp_path / "out"), site) == ["index.html: killed"] * PAGES


def test_tour_pages_that_are_not_made_are_counted(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play_browser(monkeypatch, dot=True)
    (site / "index.html").unlink()
    transcript = Transcript(tmp_path / "out")
    assert take_pages(transcript, site) == []
    assert transcript.not_made == 1 and "make docs" in transcript.lacks[0] and "index.html" in transcript.lacks[0]

    monkeypatch.setattr(screenshots, "find_browser", lambda: None)
    transcript = Transcript(tmp_path / "out")
    assert take_pages(transcript, site) == [] and transcript.not_made == PAGES and transcript.pictures == []
    assert "**NOT MADE:** pictures of pages: no Chromium here; docker/install.sh pictures" in text_of(transcript)
