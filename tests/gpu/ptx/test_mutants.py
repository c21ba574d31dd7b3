"""Orders that everything rests on, weakened: the machine finds each; and nothing as they are. `mutants.py` has all."""

from __future__ import annotations

import functools
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.gpu.ptx import mutants as hunting
from tests.gpu.ptx.known_mutants import KNOWN, REFUSED
from tests.gpu.ptx.mutants import (
    AGAIN,
    Hunt,
    Notes,
    contradictions,
    fingerprints,
    is_of,
    known,
    mutants,
    outcomes,
    refused,
)
from tests.gpu.ptx.scenarios import SCENARIOS, SEEDS, Played, play
from tests.gpu.ptx.summary import note

pytestmark = [pytest.mark.compile, pytest.mark.timeout(120)]
ARCH = "compute_90a"
ONE, TWO = "low latency, 1 node of 3", "low latency, only dispatches, 2 nodes"
HIGH = "throughput, 1 node of 3"


# By the third seed lanes dawdle, which takes twice the time: mutants.py plays all.
QUICK_SEEDS = SEEDS[:2]


@functools.cache
def _played(scenario: str) -> Played:
    return play(scenario, QUICK_SEEDS[list(SCENARIOS).index(scenario) % 2], arch=ARCH)


def _executed(scenario: str, kernel: str) -> list[int]:
    return _played(scenario).world.machine.executed(kernel)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_ptx_scenarios_are_right_without_a_mutant(scenario: str) -> None:
    assert not _played(scenario).wrong


@pytest.mark.parametrize(
    ("kernel", "how", "source", "scenario"),
    [
        pytest.param("low_latency_dispatch_send", "relax", r"node_flag", ONE, id="flag of rows, relaxed"),
        pytest.param("low_latency_dispatch_send", "narrow", r"node_flag", ONE, id="flag of rows, to its own GPU"),
        pytest.param("low_latency_dispatch_send", "relax", r"ring\.slots", TWO, id="command, before the rows it sends"),
        pytest.param("low_latency_dispatch_send", "remove", r"sync_block.*last_block", ONE, id="barrier of last_block"),
        pytest.param("low_latency_dispatch_recv", "relax", r"add_acq_rel_gpu\(counter", ONE, id="grid barrier"),
        pytest.param("low_latency_combine_send", "relax", r"node_flag", ONE, id="flag of sums, relaxed"),
        pytest.param("low_latency_combine_send", "relax", r"add_acq_rel_gpu\(ticket, 1u", ONE, id="blocks of a launch"),
        pytest.param("rank_barrier", "relax", r"signals\.barrier", "only barriers", id="barrier of all ranks"),
        pytest.param("throughput_dispatch", "relax", r"sent_word, number \+ 1", HIGH, id="chunk of a stream"),
        pytest.param(
            "throughput_dispatch", "remove", r"all lanes' stores are before", HIGH, id="lanes before the chunk"
        ),
        pytest.param(
            "throughput_counts", "remove", r"sync_block.*fill_counts", HIGH, id="counts before they are summed"
        ),
    ],
)
def test_ptx_mutant_is_found(kernel: str, how: str, source: str, scenario: str) -> None:
    executed = _executed(scenario, kernel)
    made = [m for m in mutants(ARCH) if (m.kernel, m.how) == (kernel, how) and re.search(source, m.source)]
    reached = [m for m in made if executed[m.instruction]]
    assert reached, "no scenario executes the line, or it has changed"
    found = any(play(scenario, seed, [m.key], ARCH).wrong for m in reached for seed in SEEDS)
    note(mutant=reached[0].key, found=found)
    assert found and not any(known(m) for m in reached)


def test_ptx_mutants_that_are_known_exist() -> None:
    made = mutants(ARCH)
    reasons = {known(m) for m in made}
    idle = [entry for entry in KNOWN if entry[2] not in reasons]
    assert not idle, f"no mutant is left out for this reason: {idle}"
    unseen = [pattern for how, pattern in REFUSED if not any(is_of(m, how, pattern) and refused(m) for m in made)]
    assert not unseen, f"no mutant is refused for this: {unseen}"


def test_ptx_no_mutant_that_is_found_may_have_a_reason_why_it_is_not(tmp_path: Path) -> None:
    notes, made = Notes(ARCH, tmp_path), mutants(ARCH)
    excused = next(m for m in made if known(m))
    others = [m for m in made if not known(m)]
    play: dict[str, Any] = {"scenario": "of this test", "seed": 1, "wrong": "a wrong row"}
    notes.add([others[0].kernel], mutants=[others[0].key], **play)
    notes.add([excused.kernel, others[1].kernel], mutants=[excused.key, others[1].key], **play)  # one of both
    assert not contradictions(notes, made) and outcomes(notes, made)[made.index(others[0])] == "found"
    notes.add([excused.kernel], mutants=[excused.key], **play)
    wrong = contradictions(notes, made)  # a line for each entry that has it
    assert wrong and known(excused) in wrong[0] and all(excused.kernel in line for line in wrong)
    with pytest.raises(AssertionError, match="gives a reason for mutants that are found"):
        outcomes(notes, made)


@pytest.mark.parametrize("found_at", [2, 5, 99])
def test_ptx_mutant_that_all_plays_miss_plays_again(
    found_at: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    notes, plays = Notes(ARCH, tmp_path), []

    def played(scenario: str, seed: int, changes: Any, arch: str) -> SimpleNamespace:
        plays.append(seed)
        return SimpleNamespace(wrong="a wrong row" if len(plays) == found_at else "")

    monkeypatch.setattr(hunting, "play", played)
    mutant = next(m for m in mutants(ARCH) if not known(m) and not refused(m))
    notes.executed[ONE, mutant.kernel] = [1] * (mutant.instruction + 1)
    notes.seconds = dict.fromkeys(SCENARIOS, 1.0)
    Hunt(notes, math.inf).run([mutant])
    assert plays == [*SEEDS, *SEEDS * AGAIN][:found_at]
    assert outcomes(notes, [mutant]) == ["missed" if found_at == 99 else "found"]


def test_ptx_fingerprint_of_a_kernel_is_of_its_instructions() -> None:
    """Not of the lines that they are from, nor of other kernels."""
    text = "kernel a 2 8\nplace x.h:3\nld\t-\tr0\tr1\t0\tm\t0\nkernel b 1 8\nplace x.h:4\nexit\t-\t\t\t0\t\t0\n"
    before = fingerprints(text)
    assert before.keys() == {"a", "b"}
    assert fingerprints(text.replace("x.h:3", "x.h:9").replace("m\t0", "m\t1")) == before
    changed = fingerprints(text.replace("\tm\t", "\tn\t"))
    assert changed["a"] != before["a"] and changed["b"] == before["b"]
