"""tests.tour.transcript: what is written is what was seen, without its colour codes, and pictures keep them."""

from __future__ import annotations

from pathlib import Path

from tests.tour.transcript import Transcript, plain
from tests.tour.window import uniform

RED = "\x1b[31mrank 3\x1b[0m is slow"


def test_tour_transcript_holds_commands_and_pictures(tmp_path: Path) -> None:
    transcript = Transcript(tmp_path / "tour")
    transcript.chapter("Slow", "Why?")
    transcript.command("uccl-ep top", RED, "host-1")
    picture = transcript.picture("top", "uccl-ep top", RED)
    text = (tmp_path / "tour" / "transcript.md").read_text()
    assert "## Slow\n\nWhy?" in text
    assert "```text\nhost-1$ uccl-ep top\nrank 3 is slow\n```" in text and "\x1b" not in text
    transcript.output(RED)
    assert (tmp_path / "tour" / "transcript.md").read_text().endswith("```text\nrank 3 is slow\n```\n")
    assert "![top](top.png)" in text and transcript.pictures == [picture]
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and not uniform(picture)
    transcript.lack(3, "pictures of pages: no Chromium")
    assert transcript.not_made == 3 and transcript.lacks == ["pictures of pages: no Chromium"]


def test_tour_transcript_shortens_what_is_long(tmp_path: Path) -> None:
    transcript = Transcript(tmp_path)
    transcript.command("many", "\n".join(f"line {n}" for n in range(1000)))
    text = (tmp_path / "transcript.md").read_text()
    assert "line 0\n" in text and "line 999\n" in text and "line 500\n" not in text
    assert "... 941 lines ..." in text


def test_tour_transcript_of_a_tour_that_failed_is_there(tmp_path: Path) -> None:
    Transcript(tmp_path).say("seen")
    assert (tmp_path / "transcript.md").read_text().endswith("\nseen\n")
    assert plain(RED) == "rank 3 is slow"
