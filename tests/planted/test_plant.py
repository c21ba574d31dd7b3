"""Each planted fault makes the test that guards against it fail (slow: one ThreadSanitizer build, then small ones)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.planted.faults import FAULTS
from tests.planted.plant import ROOT, plant_all

# The words of the issue; every one has at least one fault in the list.
WANTED = (
    "dropped-release",
    "dropped-acquire",
    "missing-block-barrier",
    "wrong-epoch",
    "off-by-one-slot",
    "lost-last-row",
    "weights-twice",
)


def test_planted_list_has_every_kind() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names)
    assert set(WANTED) <= set(names)


def test_planted_faults_have_their_place() -> None:
    lost = [f"{f.name}: {n} times in {f.file}" for f in FAULTS if (n := (ROOT / f.file).read_text().count(f.text)) != 1]
    assert not lost, lost


@pytest.mark.slow
@pytest.mark.timeout(900)  # builds the native part under ThreadSanitizer, and parts of it again for each fault
def test_planted_faults_are_found(tmp_path: Path) -> None:
    missed = [f"{v.fault.name}: {m}" for v in plant_all(tmp_path) for m in v.missed]
    assert not missed, "\n".join(missed)
