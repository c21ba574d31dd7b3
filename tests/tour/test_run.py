"""tests.tour.run and steps: a step that fails ends the tour, loudly; so does a command that does not exist."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from docs import screenshots
from tests.launchers import hosts
from tests.tour import run, steps
from tests.tour.run import take
from tests.tour.steps import StepFailed, Tour
from tests.tour.transcript import Transcript


@pytest.fixture
def transcript(tmp_path: Path) -> Transcript:
    return Transcript(tmp_path / "out")


def text_of(transcript: Transcript) -> str:
    return (transcript.folder / "transcript.md").read_text(encoding="utf-8")


def test_tour_ends_at_the_step_that_fails(transcript: Transcript) -> None:
    taken: list[str] = []

    def fail() -> None:
        raise StepFailed("rank 3 was not named")

    failed = take(
        transcript, [("one", lambda: taken.append("one")), ("two", fail), ("three", lambda: taken.append("!"))]
    )
    assert failed == "two: rank 3 was not named" and taken == ["one"]
    assert "**FAILED** at `two`" in text_of(transcript) and "rank 3 was not named" in text_of(transcript)
    assert take(transcript, [("one", lambda: None)]) == ""


def test_tour_of_a_machine_without_hosts_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "missing", lambda: "not root")
    assert run.main(["--here", "--out", str(tmp_path)]) == 2


def test_tour_command_that_does_not_exist_fails(transcript: Transcript, tmp_path: Path) -> None:
    tour = Tour(transcript, Path(sys.executable), False, tmp_path)
    with pytest.raises(StepFailed, match="uccl-ep clairvoyance: ended with status 2(.|\n)*No such command"):
        tour.uccl_ep("clairvoyance")
    assert "$ uccl-ep clairvoyance" in text_of(transcript)


def test_tour_of_a_wheel_sees_nothing_of_the_checkout(transcript: Transcript, tmp_path: Path) -> None:
    assert "PYTHONPATH" not in Tour(transcript, Path(sys.executable), True, tmp_path).environment()
    assert Tour(transcript, Path(sys.executable), False, tmp_path).environment(A="b")["A"] == "b"


def test_tour_without_a_browser_says_so(
    transcript: Transcript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screenshots, "find_browser", lambda: None)
    run.pictures(transcript, tmp_path)
    assert "NOT DONE: no PNG" in text_of(transcript)


def test_tour_takes_pictures_of_windows_and_of_pages_that_are_there(
    transcript: Transcript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[tuple[str, tuple[int, int]]] = []
    monkeypatch.setattr(screenshots, "find_browser", lambda: "chromium")
    monkeypatch.setattr(screenshots, "take", lambda browser, page, picture, size: taken.append((picture.name, size)))
    transcript.picture("top", "uccl-ep top", "rank 3")
    (tmp_path / "index.html").write_text("<html>")
    run.pictures(transcript, tmp_path)
    assert [name for name, _ in taken] == ["top.png", "index.png"]
    assert taken[0][1][0] > taken[0][1][1] > 50, "a window's own size"
    assert "![index](index.png)" in text_of(transcript)
    assert f"NOT DONE: {len(screenshots.PAGES) - 1} pages" in text_of(transcript)

    def fail(*_: object) -> None:
        raise screenshots.NoPicture("top.svg: killed")

    monkeypatch.setattr(screenshots, "take", fail)
    with pytest.raises(StepFailed, match="top.svg: killed"):
        run.pictures(transcript, tmp_path)


def test_tour_looks_at_the_slow_rank_and_the_victim_from_another_host() -> None:
    assert steps.SLOW != steps.VICTIM
    assert {rank // steps.RANKS_PER_HOST for rank in (steps.SLOW, steps.VICTIM)} == {1}


def test_tour_judges_which_rank_was_lost_and_when() -> None:
    killed = 1_000_000.0
    story: dict[str, Any] = {
        "culprit": steps.VICTIM,
        "lost": [{"rank": 1, "at": 0.0}, {"rank": steps.VICTIM, "at": killed + 0.25}],
    }
    assert steps.judge(story, killed) == 0.25
    wrong = [
        {**story, "culprit": None},
        {**story, "culprit": steps.SLOW},
        {**story, "lost": story["lost"][:1]},
        {**story, "lost": [{"rank": steps.VICTIM, "at": killed - 1.0}]},
        {**story, "lost": [{"rank": steps.VICTIM, "at": killed + 3600.0}]},
    ]
    for one in wrong:
        with pytest.raises(StepFailed, match="explain"):
            steps.judge(one, killed)
