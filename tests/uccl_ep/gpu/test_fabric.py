"""Fabric memory against a table of functions that checks every argument: life of an allocation, undoing, support."""

from __future__ import annotations

import ctypes
import struct
import threading

import pytest

from tests.uccl_ep.gpu.stub_libcuda import LibcudaTable
from tests.uccl_ep.gpu.stub_machine import Machine
from uccl_ep.errors import UcclEpError
from uccl_ep.gpu import fabric as fabric_module
from uccl_ep.gpu.fabric import Fabric
from uccl_ep.system.libcuda import Libcuda

GRANULE = 2 << 20


def made(**options: bool) -> tuple[LibcudaTable, Fabric]:
    table = LibcudaTable(Machine(), **options)
    return table, Fabric(Libcuda(table), 3)


def nothing_left(table: LibcudaTable) -> bool:
    return not (table.handles or table.reserved or table.mapped or table.writable)


def test_fabric_structs_are_the_headers() -> None:
    """Sizes and offsets as a C compiler has them for cuda.h of CUDA 13.0."""
    properties = fabric_module._AllocationProperties
    assert ctypes.sizeof(properties) == 32
    assert properties.win32_handle_metadata.offset == 16 and properties.flags.offset == 24
    assert ctypes.sizeof(fabric_module._Access) == 12


@pytest.mark.parametrize(("asked", "total"), [(1, GRANULE), (GRANULE, GRANULE), (GRANULE + 1, 2 * GRANULE)])
def test_fabric_memory_lives_and_goes(asked: int, total: int) -> None:
    table, fabric = made()
    address = fabric.allocate(asked)
    assert fabric.mapped_bytes(address) == total
    assert address in table.writable and list(table.handles.values()) == [total]
    kind, handle_types, where, device, metadata = struct.unpack_from("<iiiiQ", table.properties)
    assert (kind, handle_types, where, device, metadata) == (1, 8, 1, 13, 0)
    assert table.properties[25] == 1  # capable of GPUDirect RDMA
    ctypes.memset(address, 7, total)
    fabric.free(address)
    assert nothing_left(table)


def test_fabric_export_and_open() -> None:
    table, fabric = made()
    address = fabric.allocate(5 * GRANULE)
    exported = fabric.export(address)
    assert len(exported) == 64
    other = fabric.open(exported, fabric.mapped_bytes(address))
    assert other != address and fabric.mapped_bytes(other) == 5 * GRANULE
    fabric.free(address)
    assert other in table.writable  # a peer keeps what it has opened
    fabric.free(other)
    assert nothing_left(table)
    with pytest.raises(UcclEpError, match="cuMemImportFromShareableHandle failed: CUDA_ERROR_NOT_PERMITTED"):
        fabric.open(b"\0" * 8 + b"f" * 56, GRANULE)


@pytest.mark.parametrize("step", ["cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"])
def test_fabric_undoes_what_a_failure_leaves(step: str) -> None:
    table, fabric = made()
    table.failing[step] = 2
    with pytest.raises(UcclEpError, match=f"{step} failed"):
        fabric.allocate(GRANULE)
    assert nothing_left(table)


def test_fabric_memory_goes_and_comes_at_its_address() -> None:
    table, fabric = made()
    address = fabric.allocate(3 * GRANULE)
    for _ in range(2):
        fabric.put_away(address)
        assert not table.handles and not table.mapped and table.reserved == {address: 3 * GRANULE}
        for step in ("cuMemCreate", "cuMemMap", "cuMemSetAccess"):
            table.failing = {step: 2}
            with pytest.raises(UcclEpError, match=f"{step} failed"):
                fabric.bring_back(address)
            assert not table.handles and not table.mapped and address in table.reserved
        table.failing = {}
        assert fabric.bring_back(address) == address and fabric.mapped_bytes(address) == 3 * GRANULE
        assert address in table.writable and len(fabric.export(address)) == 64
    fabric.put_away(address)
    fabric.free(address)
    assert nothing_left(table) and not fabric._away


def test_fabric_support_is_tried() -> None:
    table, fabric = made()
    assert fabric.supported() and nothing_left(table)
    for step in ("cuMemCreate", "cuMemExportToShareableHandle", "cuDeviceGetAttribute"):
        table.failing = {step: 800}  # without IMEX the attribute says yes and the call is not permitted
        assert not fabric.supported() and nothing_left(table)
    assert not made(fabric=False)[1].supported()


def test_fabric_many_threads() -> None:
    table, fabric = made()

    def work() -> None:
        for _ in range(50):
            fabric.free(fabric.allocate(1))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert nothing_left(table) and not fabric._mapped
