"""The machine's processors: which blocks run at once, beside what, and which none could hold."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.gpu.ptx.machine import MachineError
from tests.gpu.ptx.test_machine import Bench

pytestmark = [pytest.mark.compile, pytest.mark.timeout(60)]


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.machine.close()


@pytest.mark.parametrize(
    ("most", "shape"),
    [
        pytest.param(4, {"lanes": 512, "registers": 122}, id="registers, which are given out in eights: 128"),
        pytest.param(8, {"lanes": 512, "registers": 64}, id="registers"),
        pytest.param(8, {"lanes": 1024}, id="lanes"),
        pytest.param(8, {"shared": 113 << 10}, id="shared memory, and 1 KiB that each block takes"),
        pytest.param(4, {"shared": (113 << 10) + 1}, id="shared memory, one byte more"),
        pytest.param(128, {}, id="blocks"),
    ],
)
def test_ptx_machine_blocks_run_at_once_as_processors_have_room(bench: Bench, most: int, shape: dict[str, int]) -> None:
    assert bench.message("all_blocks_meet", grid=most, **shape).grid == most
    bench.words[0] = 0
    with pytest.raises(MachineError, match=f"1 of {most + 1} blocks find no room, and all that run wait"):
        bench.message("all_blocks_meet", grid=most + 1, **shape)


def test_ptx_machine_another_process_on_the_gpu_takes_room(bench: Bench) -> None:
    bench.machine.occupy(0, 3)  # of 4 processors
    assert bench.message("all_blocks_meet", grid=4, lanes=512).grid == 4
    bench.words[0] = 0
    with pytest.raises(MachineError, match="1 of 5 blocks find no room"):
        bench.message("all_blocks_meet", grid=5, lanes=512)


def test_ptx_machine_another_process_that_leaves_makes_room() -> None:
    bench = Bench(patience_s=50)
    bench.machine.occupy(0, 3)
    timer = threading.Timer(0.05, lambda: bench.machine.occupy(0, 2))
    timer.start()
    assert bench.message("all_blocks_meet", grid=8, lanes=512).grid == 8  # it waits for the other one to leave
    timer.join()
    bench.machine.close()


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ({"lanes": 512, "registers": 129}, "a block of 69632 registers, of which there are 65536"),
        ({"shared": (227 << 10) + 1}, "a block of 232449 bytes of shared memory, of which there are 232448"),
        ({"lanes": 1056}, "a block of 1056 lanes, of which there are 1024"),
        ({"grid": 0}, "a grid of no blocks"),
    ],
)
def test_ptx_machine_refuses_launches_that_no_processor_holds(bench: Bench, shape: dict[str, int], said: str) -> None:
    with pytest.raises(MachineError, match=f"message: {said}"):
        bench.message("message", **shape)
