"""What `python -m tests.docker` ends with: where there is no clean root, never with a success."""

from __future__ import annotations

import sys

import pytest

from tests.docker import __main__ as command
from tests.docker import clean_root


@pytest.mark.parametrize(
    ("why", "status", "ended", "ran"),
    [
        ("", 0, 0, "clean_root"),
        ("", 1, 1, "clean_root"),
        ("not root", 0, 77, "fresh_environment"),
        ("not root", 1, 1, "fresh_environment"),
    ],
)
def test_docker_command_is_no_success_without_a_clean_root(
    why: str, status: int, ended: int, ran: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def main(arguments: list[str]) -> int:
        asked.extend(arguments)
        return status

    monkeypatch.setattr(clean_root, "missing", lambda: why)
    monkeypatch.setattr(clean_root, "base", lambda: None)
    monkeypatch.setattr(pytest, "main", main)
    monkeypatch.setattr(sys, "argv", ["tests.docker"])
    assert command.main() == ended and asked[asked.index("-k") + 1] == ran
    lines = capsys.readouterr().out.splitlines()  # .ci/run looks for lines that begin so
    said = "NOT RUN: a clean root cannot be made: not root. Needed: as root, docker/install.sh roots"
    assert [line.startswith(said) for line in lines] == [True] * (ended == 77)
