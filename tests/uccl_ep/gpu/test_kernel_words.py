"""The words and tables that captured calls name, from one life of a Buffer to the next."""

from __future__ import annotations

from tests.uccl_ep.gpu.fake_driver import FakeDriver
from tests.uccl_ep.gpu.test_memory import NOTHING
from uccl_ep import _native
from uccl_ep.gpu.kernel_words import KernelWords


def placed(driver: FakeDriver, node_of: list[int], data: list[int]) -> KernelWords:
    words = KernelWords(driver, num_rings=2, num_ranks=len(node_of))
    tables = _native.RankTablesSettings()
    tables.rank, tables.node_of, tables.cell_of = 0, node_of, list(range(len(node_of)))
    tables.num_rings, tables.ring_capacity, tables.rings = 2, 64, 1 << 20
    tables.data, tables.control = data, [2 * at for at in data]
    words.place(tables)
    return words


def test_kernel_words_move_to_where_another_life_has_them() -> None:
    driver = FakeDriver()
    before, life = placed(driver, [0, 0, 1], [4096, 8192]), placed(driver, [0, 0, 1], [12288, 16384])
    before.mask[1], before.peer_stats[2, 3] = 1, 7
    life.context.tag, life.mask[2] = 9, 1
    _, told = life.told_at(before)
    assert told.bytes == before.context.bytes and life.context.bytes != before.context.bytes
    at = before.addresses
    context = life.move_to(before)
    assert life.addresses == at and context is life.context and context.tag == 9
    assert life.mask.tolist() == [0, 0, 1] and int(life.peer_stats.sum()) == int(life.read_stats().sum()) == 0
    image = driver.read(at[1], 256)
    assert (12288).to_bytes(8, "little") in image and (4096).to_bytes(8, "little") not in image
    life.rows_are_at([20480, 24576])
    assert (20480).to_bytes(8, "little") in driver.read(at[1], 256)
    assert driver.held()["allocated"] == 2  # the other life has a hold on both
    for one in (before, life):
        for ending in one.endings():
            ending()
    assert driver.held() == NOTHING


def test_kernel_words_of_other_members_are_told_otherwise() -> None:
    driver = FakeDriver()
    before = placed(driver, [0, 0, 1], [4096, 8192])
    for node_of, data in (([0, 1, 1], [4096]), ([0, 0, 0], [4096, 8192, 12288]), ([0, 0, 1, 1], [4096, 8192])):
        _, told = placed(driver, node_of, data).told_at(before)
        assert told.bytes != before.context.bytes
