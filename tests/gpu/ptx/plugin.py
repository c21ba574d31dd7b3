"""`pytest -p tests.gpu.ptx.plugin --ptx compute_90a`: the fake GPU of the tests runs NVRTC's PTX of the kernels.

Every test then fails that saw a kernel do what PTX does not allow: an access without order, beyond an allocation, not
aligned, of the wrong state space; a collective that not all lanes reach; shared memory read before it is written.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.gpu.ptx.executor import PtxExecutor, World
from tests.gpu.ptx.programs import ARCHITECTURES
from tests.uccl_ep.gpu.fake_driver import FakeDriver
from uccl_ep.group.thread_group import ThreadGroup

_launches: Counter[str] = Counter()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ptx", "kernels as PTX")
    group.addoption("--ptx", choices=ARCHITECTURES, default="compute_90a", help="what NVRTC compiles for")
    group.addoption("--ptx-seed", type=int, default=1, help="of the order of lanes")
    group.addoption("--ptx-preempt", type=int, default=4, help="give way after one in N ordering instructions; 0: never")
    group.addoption("--ptx-no-judge", action="store_true", help="look for no races: several times faster")


@pytest.fixture(autouse=True)
def ptx_world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """The machine of one test."""
    option = request.config.getoption
    world = World(option("--ptx"), option("--ptx-seed"), option("--ptx-preempt"), not option("--ptx-no-judge"))
    monkeypatch.setattr(PtxExecutor, "world", world, raising=False)
    monkeypatch.setattr(FakeDriver, "executor_type", PtxExecutor)
    barrier = threading.Barrier.wait

    def meet(group: ThreadGroup) -> None:
        barrier(group._shared.barrier, 60)
        world.machine.hosts_meet()
        barrier(group._shared.barrier, 60)

    gather = ThreadGroup.all_gather_object

    def gathered(group: ThreadGroup, value: Any) -> list[Any]:
        values = gather(group, value)
        world.machine.hosts_meet()
        return values

    monkeypatch.setattr(ThreadGroup, "barrier", meet)
    monkeypatch.setattr(ThreadGroup, "all_gather_object", gathered)
    yield world
    _launches.update(world.launches)
    if world.errors:
        pytest.fail("kernels broke PTX's rules:\n" + "\n".join(world.errors[:5]), pytrace=False)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _launches:
        terminalreporter.write_line(f"launches of PTX: {dict(_launches)}")
