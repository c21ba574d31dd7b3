"""Ranks that were started differently: every one of them says what differs and with what values, before any traffic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.end_to_end.world import World
from tests.faults.bodies import start
from tests.faults.fleet import Fleet


def test_settings_mismatch_of_an_argument() -> None:
    with Fleet(World(3, 2, "tcp"), start, 1 << 20) as fleet:
        fleet.remember()
        for rank, fault in fleet.wait_for("fault", range(3)).items():
            assert fault is not None and fault.kind == "SettingsMismatch", rank
            for words in ("num_nvl_bytes differs", "rank 0 (", f": {1 << 20}", "rank 1 (", f": {2 << 20}"):
                assert words in fault.text, (rank, fault)


@pytest.mark.parametrize(
    ("change", "name", "values"),
    [
        ({"rings": 3}, "UCCL_EP_RINGS", ("2", "3")),
        ({"transport": "shared_memory"}, "UCCL_EP_TRANSPORT", ("tcp", "shared_memory")),
        ({"ranks_per_node": 1}, "UCCL_EP_RANKS_PER_NODE", ("2", "1")),
    ],
)
def test_settings_mismatch_of_the_environment(change: dict[str, int | str], name: str, values: tuple[str, ...]) -> None:
    world = World(3, 2, "tcp")
    with Fleet(world, start, 0, worlds=[world, world, replace(world, **change)]) as fleet:  # type: ignore[arg-type]
        fleet.remember()
        for rank, fault in fleet.wait_for("fault", range(3)).items():
            assert fault is not None and fault.kind == "SettingsMismatch", (rank, fault)
            assert name in fault.text and all(value in fault.text for value in values), (rank, fault)
