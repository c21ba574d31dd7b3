"""What the table of `make prove` says of outputs: sums, and what makes a step one that does not hold."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.prove.__main__ import main, rows_of
from tests.prove.steps import (
    Row,
    Step,
    read_endurance,
    read_fuzz,
    read_plans,
    read_simulation,
    read_states,
    steps,
)


def figures(rows: list[Row]) -> dict[str, tuple[str, bool]]:
    return {row.what: (row.figure, row.good) for row in rows}


def test_steps_add_states_and_planted_bugs_up() -> None:
    text = (
        "ring   no_lost   12000 states  40 deep  1.0 s  holds\nbarrier: 1,000 states\n"
        "BUG_A  30 states  5 deep  breaks no_lost\nBUG_B  20 states  5 deep  breaks NOTHING\n"
    )
    shown = figures(list(read_states(text, Path())))
    assert shown["explorations"] == ("4, 13,050 states in all", True)
    assert shown["planted bugs that a model finds"] == ("1 of 2", False)
    assert figures(list(read_states("nothing ran", Path())))["explorations"][1] is False


def test_steps_simulation_fails_by_its_failing_seeds(tmp_path: Path) -> None:
    file = tmp_path / "figures"
    names = "seeds rows writes most_ranks overtakes deepest faults failed absences".split()
    result = {"options": {"first": 5}, "totals": dict.fromkeys(names, 12345), "failures": []}
    file.write_text(json.dumps(result))
    shown = figures(list(read_simulation("", file)))
    assert shown["rows compared"] == ("12,345 in 12,345 writes", True) and "from 5 on" in shown["seeds"][0]
    assert all(good for _, good in shown.values())
    file.write_text(json.dumps(result | {"failures": [{"seed": 3}]}))
    assert [what for what, (_, good) in figures(list(read_simulation("", file))).items() if not good] == [
        "failing seeds (wrong rows, wrong reports, hangs)"
    ]


def test_steps_plans_count_outcomes_and_leaks(tmp_path: Path) -> None:
    file = tmp_path / "figures"
    line = {"plan": "kill 1", "outcome": "passed", "slowest_s": 1.5, "leaks": 0, "note": ""}
    file.write_text("\n".join(json.dumps(line | changed) for changed in ({}, {"plan": "kill 2", "slowest_s": 3.25})))
    shown = figures(list(read_plans("", file)))
    assert shown["fault plans passed"] == ("2 of 2", True)
    assert shown["slowest survivor's report"][0] == "3.2 s (kill 2)" and shown["leaks after a plan"] == ("0", True)
    file.write_text(json.dumps(line | {"outcome": "skipped"}))  # all of them
    assert not figures(list(read_plans("", file)))["fault plans passed"][1]
    file.write_text(json.dumps(line | {"outcome": "failed", "leaks": 2}))
    shown = figures(list(read_plans("", file)))
    assert not shown["fault plans passed"][1] and not shown["leaks after a plan"][1]
    file.write_text("\n".join(json.dumps(line | {"outcome": outcome}) for outcome in ("failed", "passed")))
    assert figures(list(read_plans("", file)))["fault plans passed"] == ("1 of 2", False)  # no second try excuses it
    assert not figures(list(read_plans("", tmp_path / "none")))["fault plans passed"][1]


def test_steps_fuzz_and_endurance(tmp_path: Path) -> None:
    names = ("tcp_frames", "tcp_handshake", "arrivals", "addresses", "memory")
    text = "tests/fuzz/test_fuzz.py " + "\n.".join(
        f"fuzzed {n:14} 20 s     1234 executions     55 edges      99 frames, connections" for n in names
    )
    shown = figures(list(read_fuzz(text, Path())))
    assert shown["fuzzed arrivals"] == ("1,234 inputs, 55 edges, 99 frames, knocks, texts or words", True)
    assert len(shown) == 5 and all(good for _, good in shown.values())
    shown = figures(list(read_fuzz(text + "\nmemory ended: 5 worlds; ranks: 3 exact, 7 timeouts", Path())))
    assert shown["words of memory overwritten in 5 worlds"] == ("ranks: 3 exact, 7 timeouts", True)
    shown = figures(list(read_fuzz(text.split("\n", 1)[1], Path())))
    assert shown["fuzzed tcp_frames"] == ("was not run", False)
    assert not any(good for _, good in figures(list(read_fuzz("2 skipped", Path()))).values())
    file = tmp_path / "figures"
    line: dict[str, object] = {"part": "cycles", "rank": 0, "repeated": 30, "beyond": {}}
    file.write_text(json.dumps([line, line | {"rank": 1}, line | {"part": "mixed", "repeated": 7}]))
    shown = figures(list(read_endurance("", file)))
    assert shown == {
        "Buffers made and destroyed": ("30", True), "rounds of mixed modes": ("7", True),
        "leaks": ("0 of 3 processes grew", True),
    }  # fmt: skip
    file.write_text(json.dumps([line, line | {"beyond": {"rss": 5}}]))
    assert not figures(list(read_endurance("", file)))["leaks"][1]
    assert not any(good for _, good in figures(list(read_endurance("", tmp_path / "none"))).values())


@pytest.mark.parametrize("status, good", [(0, True), (1, False), (124, False)])
def test_steps_an_ended_step_says_how(status: int, good: bool, tmp_path: Path) -> None:
    step = Step("fuzzing", ("true",), 5, read_fuzz)
    step = replace(step, read=lambda text, _: [Row("lines", text)])
    rows = rows_of(step, status, "one", tmp_path)
    assert all(row.good for row in rows) == good
    assert not rows_of(replace(step, read=lambda *_: []), 0, "", tmp_path)[0].good  # nothing shown, nothing proven
    unreadable = Step("simulation", ("true",), 5, read_simulation)
    assert not rows_of(unreadable, 0, "", tmp_path / "none")[0].good


def test_steps_name_folders_that_exist(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    for step in steps(tmp_path, 1, 1.0, 2):
        assert all((root / word).is_dir() for word in step.command if word.startswith("tests/"))


def test_steps_only_runs_what_was_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "no such step"]) == 0
    assert "==>" not in capsys.readouterr().out


def test_steps_a_skipped_one_is_said_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "fault plans", "--skip", "fault plans"]) == 0
    shown = capsys.readouterr().out
    assert "==>" not in shown and "SKIPPED, as asked" in shown
    assert "left out: fault plans" in shown and "all of it holds" not in shown
