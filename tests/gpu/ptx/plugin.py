"""`pytest -p tests.gpu.ptx.plugin --ptx compute_90a`: the fake GPU of the tests runs NVRTC's PTX of the kernels.

Every test then fails that saw a kernel do what PTX does not allow: an access without order, beyond an allocation, not
aligned, of the wrong state space; a collective that not all lanes reach; shared memory read before it is written.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gpu.ptx.executor import World, playing
from tests.gpu.ptx.programs import ARCHITECTURES
from tests.gpu.ptx.summary import note


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ptx", "kernels as PTX")
    group.addoption("--ptx", choices=ARCHITECTURES, default="compute_90a", help="what NVRTC compiles for")
    group.addoption("--ptx-seed", type=int, default=1, help="of the order of lanes")
    group.addoption(
        "--ptx-preempt", type=int, default=4, help="give way after one in N ordering instructions; 0: never"
    )
    group.addoption("--ptx-no-judge", action="store_true", help="look for no races: several times faster")


@pytest.fixture(autouse=True)
def ptx_world(request: pytest.FixtureRequest) -> Iterator[World]:
    """The machine of one test."""
    option = request.config.getoption
    arch, seed = option("--ptx"), option("--ptx-seed")
    world = World(arch, seed, option("--ptx-preempt"), not option("--ptx-no-judge"))
    with playing(world):
        yield world
    executed = {kernel: sum(world.machine.executed(kernel)) for kernel in world.launches}
    note(body=request.node.nodeid, arch=arch, seed=seed, launches=dict(world.launches), executed=executed)
    if world.errors:
        pytest.fail("kernels broke PTX's rules:\n" + "\n".join(world.errors[:5]), pytrace=False)
