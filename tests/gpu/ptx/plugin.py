"""`pytest -p tests.gpu.ptx.plugin --ptx compute_90a`: the fake GPU of the tests runs NVRTC's PTX of the kernels.

Every test then fails that saw a kernel do what PTX does not allow: an access without order, beyond an allocation, not
aligned, of the wrong state space; a collective that not all lanes reach; shared memory read before it is written.
"""

from __future__ import annotations

import random
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
    group.addoption(
        "--ptx-most", type=int, default=0, help="of a function's cases play so many, drawn by its name; 0: all"
    )


@pytest.hookimpl(trylast=True)  # of what -k and -m have left
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Each body plays; of its parameters only a sample, where --ptx-most asks for one. The same one everywhere."""
    if not (most := config.getoption("--ptx-most")):
        return
    alike: dict[str, list[pytest.Item]] = {}
    for item in items:
        alike.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out = [one for name, cases in alike.items() for one in random.Random(name).sample(cases, len(cases))[most:]]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


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
