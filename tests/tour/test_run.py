"""tests.tour.run and steps: a step that fails ends the tour, loudly; so does a command that does not exist."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.launchers import hosts
from tests.tour import environments, run, steps
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


def test_tour_of_a_machine_without_hosts_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hosts, "missing", lambda: "not root")
    assert run.main(["--here", "--out", str(tmp_path)]) == run.STATUS_NOT_RUN == 77
    assert "NOT RUN: two hosts cannot be made: not root" in capsys.readouterr().out


def test_tour_command_that_does_not_exist_fails(transcript: Transcript, tmp_path: Path) -> None:
    tour = Tour(transcript, Path(sys.executable), False, tmp_path)
    with pytest.raises(StepFailed, match="uccl-ep clairvoyance: ended with status 2(.|\n)*No such command"):
        tour.uccl_ep("clairvoyance")
    assert "$ uccl-ep clairvoyance" in text_of(transcript)


def test_tour_of_a_wheel_sees_nothing_of_the_checkout(transcript: Transcript, tmp_path: Path) -> None:
    assert "PYTHONPATH" not in Tour(transcript, Path(sys.executable), True, tmp_path).environment()
    assert Tour(transcript, Path(sys.executable), False, tmp_path).environment(A="b")["A"] == "b"


def test_tour_ends_with_what_was_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failures = iter(["", "doctor: no cpu"])

    def walk(transcript: Transcript, way: str, site: Path) -> str:
        assert way == "linked"
        transcript.picture("top", "uccl-ep top", "rank 3")
        transcript.lack(4, "pictures of pages: no Chromium here")
        return next(failures)

    monkeypatch.setattr(hosts, "missing", lambda: "")
    monkeypatch.setattr(run, "walk", walk)
    for status, said in ((0, "whole path was walked"), (1, "FAILED at doctor: no cpu")):
        assert run.main(["--linked", "--out", str(tmp_path)]) == status
        shown = " ".join(capsys.readouterr().out.split())
        assert "NOT MADE: pictures of pages: no Chromium here" in shown and "1 pictures, 4 not made" in shown
        assert said in shown


def test_tour_fails_where_a_page_has_no_picture(transcript: Transcript, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "take_pages", lambda *_: ["index.html: killed"])
    with pytest.raises(StepFailed, match="no picture: index.html: killed"):
        run.pictures(transcript, Path("site"))
    monkeypatch.setattr(run, "take_pages", lambda *_: [])
    run.pictures(transcript, Path("site"))


def test_tour_install_fails_with_what_was_printed(
    transcript: Transcript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> str:
        raise environments.NotInstalled("no room for torch")

    monkeypatch.setattr(environments, "pack", fail)
    tour = Tour(transcript, tmp_path / "environment/bin/python", True, tmp_path)
    with pytest.raises(StepFailed, match="no room for torch"):
        steps.install(tour, "linked")
    assert "SKIPPED (`--linked`)" in text_of(transcript)


def test_tour_looks_at_the_slow_rank_and_the_victim_from_another_host() -> None:
    assert steps.SLOW != steps.VICTIM
    assert {rank // steps.RANKS_PER_HOST for rank in (steps.SLOW, steps.VICTIM)} == {1}


def test_tour_judges_which_rank_was_lost_and_when() -> None:
    killed = 1_000_000.0
    story: dict[str, Any] = {
        "root_cause": steps.VICTIM,
        "lost": [{"rank": 1, "at": 0.0}, {"rank": steps.VICTIM, "at": killed + 0.25}],
    }
    assert steps.judge(story, killed) == 0.25
    wrong = [
        {**story, "root_cause": None},
        {**story, "root_cause": steps.SLOW},
        {**story, "lost": story["lost"][:1]},
        {**story, "lost": [{"rank": steps.VICTIM, "at": killed - 1.0}]},
        {**story, "lost": [{"rank": steps.VICTIM, "at": killed + 3600.0}]},
    ]
    for one in wrong:
        with pytest.raises(StepFailed, match="explain"):
            steps.judge(one, killed)
