"""Nothing grows over many Buffers, nor over a long use of one; and what does grow is seen."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.world import Crew, World
from tests.endurance import __main__ as command
from tests.endurance.bodies import cycles, step_of
from tests.endurance.measure import MEMORY_NOISE_BYTES, Sample, beyond_noise, growth, take
from tests.endurance.run import WORLDS, Finding, Plan, run, table, write_json

_KEPT: list[Any] = []


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_endurance_short_form(tmp_path: Path) -> None:
    """60 cycles and 40 s over both transports and both kinds of proxy."""
    findings = run(Plan(cycles=60, minutes=40 / 60))
    print("\n" + table(findings))
    write_json(findings, Path(os.environ.get("ENDURANCE_JSON") or tmp_path / "endurance.json"))
    assert len(findings) == 2 * sum(world.ranks for world in WORLDS)
    assert all(finding.repeated >= 12 for finding in findings)
    assert not [finding for finding in findings if finding.beyond]


def leaking(group: Any, ranks_per_node: int, first: int, count: int) -> Sample:
    """As `cycles`, with one descriptor and 4 MiB that rank 1 keeps each time."""
    cycles(group, ranks_per_node, first, count)
    if group.rank() == 1:
        _KEPT.append((open("/dev/null", "rb"), bytearray(os.urandom(4 << 20))))  # noqa: SIM115
    return take()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_endurance_sees_what_a_rank_keeps() -> None:
    crew = Crew(2)
    try:
        slices = [crew.run(World(2, 1, "tcp"), leaking, 1, number, 1) for number in range(12)]
    finally:
        crew.close()
    clean, kept = zip(*slices, strict=True)
    assert not beyond_noise(clean), growth(clean)
    assert {"rss", "descriptors"} <= set(beyond_noise(kept)) <= {"rss", "pss", "descriptors"}, growth(kept)


def test_endurance_growth_is_judged_after_the_warm_up() -> None:
    base = Sample(rss=1 << 28, pss=1 << 27, descriptors=20, segments=0, threads=3, children=0)
    cold = replace(base, rss=0, descriptors=3)
    spike = replace(base, threads=9, rss=1 << 30)
    assert not beyond_noise([cold, cold, base, base, spike, base, base, spike])
    assert beyond_noise([base] * 5 + [replace(base, threads=4)] * 4) == {"threads": 1}
    assert not beyond_noise([base] * 5 + [replace(base, rss=base.rss + MEMORY_NOISE_BYTES)] * 4)
    more = replace(base, rss=base.rss + MEMORY_NOISE_BYTES + 1)
    assert beyond_noise([base] * 5 + [more] * 4) == {"rss": MEMORY_NOISE_BYTES + 1}
    with pytest.raises(AssertionError, match="too few"):
        growth([base])


def test_endurance_rounds_change_mode_and_shape() -> None:
    steps = [step_of(number) for number in range(200)]
    assert len(set(steps)) > 8
    assert len({type(step) for step in steps[:2]}) == 2
    assert len({(step.max_tokens, step.hidden) for step in steps}) >= 6


def test_endurance_table_and_json(tmp_path: Path) -> None:
    sample = Sample(2 << 20, 1 << 20, 20, 5, 3, 0)
    good = Finding("cycles", "2 ranks", 0, 12, sample, sample, {"rss": 0}, {})
    bad = replace(good, part="mixed", beyond={"threads": 2})
    assert "GREW {'threads': 2}" in table([good, bad])
    assert table([good, bad]).endswith("endurance: 12 cycles, 12 mixed rounds, 1 of 2 grew")
    write_json([good, bad], tmp_path / "f.json")
    read = json.loads((tmp_path / "f.json").read_text())
    assert [entry["beyond"] for entry in read] == [{}, {"threads": 2}]


@pytest.mark.parametrize("grew", [{}, {"segments": 4}])
def test_endurance_command_line(
    grew: dict[str, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:  # noqa: E501
    sample = Sample(2 << 20, 1 << 20, 20, 5, 3, 0)
    asked: list[Plan] = []

    def instead(plan: Plan, progress: Any) -> list[Finding]:
        asked.append(plan)
        progress("half", 0.5)
        return [Finding("cycles", "2 ranks", 0, 12, sample, sample, grew, grew)]

    monkeypatch.setattr(command, "run", instead)
    file = tmp_path / "out.json"
    assert command.main(["--cycles", "7", "--minutes", "0.5", "--json", str(file)]) == int(bool(grew))
    assert (asked[0].cycles, asked[0].minutes) == (7, 0.5)
    assert "endurance: 12 cycles" in capsys.readouterr().out and json.loads(file.read_text())
    for wrong in (["--cycles", "0"], ["--minutes", "0"], ["--minutes", "nan"]):
        with pytest.raises(SystemExit):
            command.main(wrong)
