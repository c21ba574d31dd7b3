"""`uccl-ep explain`: from files to words or JSON; what is no record is one red line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.uccl_ep.recorder.records import bereaved
from uccl_ep import InvalidArgument
from uccl_ep.cli import app
from uccl_ep.recorder.record import write

runner = CliRunner()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for rank in (0, 1, 3):
        write(bereaved(rank, 2), tmp_path)
    return tmp_path


def test_recorder_explain_tells_the_story(folder: Path) -> None:
    done = runner.invoke(app, ["explain", str(folder)])
    assert done.exit_code == 0 and "Rank 2 was lost." in done.output
    one = runner.invoke(app, ["explain", str(folder / "1234abcd-rank0.uccl-ep")])
    assert one.exit_code == 0 and "Rank 2 was lost." in one.output and "ranks 1, 2 and 3" in one.output


def test_recorder_explain_as_json(folder: Path) -> None:
    done = runner.invoke(app, ["explain", str(folder), "--json"])
    story = json.loads(done.output)
    assert done.exit_code == 0 and story["culprit"] == 2
    assert [(loss["rank"], loss["by"]) for loss in story["lost"]] == [(2, [0, 1, 3])]
    assert story["story"][0] == "Rank 2 was lost."


def test_recorder_explain_refuses_what_is_no_record(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "absent"):
        done = runner.invoke(app, ["explain", str(place)])
        assert done.exit_code != 0 and isinstance(done.exception, InvalidArgument) and str(place) in str(done.exception)
    assert runner.invoke(app, ["explain"]).exit_code == 2
