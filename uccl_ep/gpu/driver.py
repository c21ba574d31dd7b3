"""What this package needs of a GPU, as one small contract.

`cupy_driver` fulfils it on NVIDIA and AMD through CuPy (code, memory) and torch (streams, tensors); the tests' driver
fulfils it on a CPU, so that everything above this line is exercised where there is no GPU. Addresses are plain integers
in the unified address space. No method waits for the device unless it says so.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from uccl_ep.errors import InvalidArgument


@dataclass(frozen=True)
class Facts:
    """What is known of a GPU; `identity` is the same for the same physical GPU in any process of the host."""

    name: str  # as the vendor has it
    arch: str  # what kernels are compiled for: sm_90a, gfx942
    warp: int  # lanes
    num_sms: int
    max_shared_bytes: int  # a block may ask for
    memory_bytes: int
    identity: str  # PCI bus id
    can_export: bool  # memory can be opened by other processes of the host
    maps_host_memory: bool  # registered host memory is readable and writable by kernels
    writes_ordering: int = 0  # of NICs' writes: CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING
    flush_options: int = 0  # CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS
    coherent_host: bool = False  # the CPU has a coherent link to it (NVLink-C2C)
    domain: str = ""  # the NVLink domain whose GPUs, also of other hosts, can open its memory; empty: none
    domain_reason: str = "it is in no NVLink domain"  # why none


class Driver(Protocol):
    """One GPU as one process sees it. Thread-safe: ranks that are threads share a driver."""

    facts: Facts
    torch_device: torch.device
    keeps_addresses: bool  # of memory that is put away: it has address space of its own

    # ---- code ------------------------------------------------------------------------------------------------------

    def load(self, binary: bytes) -> Any:
        """A module of compiled kernels, kept loaded as long as the result lives."""

    def function(self, module: Any, name: str) -> int:
        """A kernel of the module, loaded completely: launching it later allocates and loads nothing.

        Raises:
            UcclEpError: the module has no such kernel.
        """

    def allow_shared(self, function: int, shared_bytes: int) -> None:
        """Lets launches of a kernel use this much dynamic shared memory a block."""

    def resident_blocks(self, function: int, block: int, shared_bytes: int) -> int:
        """How many of such blocks one SM can hold at once."""

    def launch(self, function: int, grid: int, block: int, shared_bytes: int, stream: Any, args: bytes) -> None:
        """Queues a kernel on a stream; its one parameter is a struct given as bytes. Recorded while capturing."""

    # ---- memory ----------------------------------------------------------------------------------------------------

    def allocate(self, num_bytes: int, shared: bool = False) -> int:
        """Device memory, zeroed, at least page-aligned, exportable where facts.can_export, in whole units of 2 MiB.

        Args:
            shared: NICs and other GPUs read and write it while kernels of this one do.

        Raises:
            UcclEpError: there is not enough.
        """

    def free(self, address: int) -> None:
        """Gives memory of `allocate` back; an address that is kept without memory, too. May wait for the device."""

    def put_away(self, address: int) -> None:
        """Gives the memory at an address of `allocate` back until `bring_back`; nobody has it open, no kernel uses it.
        Without keeps_addresses the address is gone with it."""

    def bring_back(self, address: int, num_bytes: int, shared: bool = False) -> int:
        """Memory again for what was put away, as `allocate`: zeroed. At the same address where keeps_addresses.

        Raises:
            UcclEpError: there is not enough; it is still put away.
        """

    def view(self, address: int, num_bytes: int) -> torch.Tensor:
        """uint8 tensor [num_bytes] over device memory or registered host memory, as kernels see it; does not own it."""

    def export(self, address: int) -> bytes:
        """What another process of this host, or of facts.domain, needs to open memory of `allocate`."""

    def dmabuf(self, address: int, num_bytes: int) -> int:
        """Descriptor of a dma-buf over memory of `allocate`, in units of 2 MiB: what a NIC registers.

        The caller closes it.

        Raises:
            UcclEpError: this driver gives none.
        """

    def open(self, handle: bytes) -> int:
        """Address of memory that another process exported (never this one: it has the address already)."""

    def close(self, address: int) -> None:
        """Ends an `open`."""

    def register(self, address: int, num_bytes: int) -> int:
        """Pins host memory (whole pages) and maps it for kernels; returns the address they use.

        Raises:
            UcclEpError: refused, with the limit to raise (locked memory) where that is why.
        """

    def unregister(self, address: int) -> None:
        """Ends a `register`, by the host's address."""

    def flush_call(self) -> tuple[int, int, int]:
        """What a proxy thread calls to make NICs' writes visible: the addresses of cuFlushGPUDirectRDMAWrites and of
        cuCtxSetCurrent, and the context. Only where facts.flush_options says so."""

    def read(self, address: int, num_bytes: int) -> bytes:
        """Device memory as it is now, copied past whatever kernels are queued or running; waits for the copy only."""

    def write(self, address: int, data: bytes) -> None:
        """Copies to device memory, likewise; returns when it is there."""

    # ---- streams ---------------------------------------------------------------------------------------------------

    def new_stream(self) -> Any:
        """A stream that waits for no other by itself (torch.cuda.Stream)."""

    def current_stream(self) -> Any:
        """The calling thread's current stream."""

    def here(self) -> tuple[Any, int, bool]:
        """The calling thread's current stream, its key, and whether it is being captured: what every call asks."""

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Within it `stream` is current for this thread, also for torch."""

    def stream_key(self, stream: Any) -> int:
        """The same number for the same stream."""

    def record(self, stream: Any) -> Any:
        """An event after everything queued on the stream so far (torch.cuda.Event)."""

    def wait(self, stream: Any, event: Any) -> None:
        """What is queued on the stream from now on runs after the event."""

    def query(self, event: Any) -> bool:
        """Whether the event has happened."""

    def synchronize(self, event: Any) -> None:
        """Blocks the calling thread, without the GIL, until the event has happened.

        Raises:
            UcclEpError: the device failed.
        """

    def capturing(self, stream: Any) -> bool:
        """Whether work queued on the stream is being recorded into a graph instead of run."""

    def use_on(self, tensor: torch.Tensor, stream: Any) -> None:
        """Keeps a tensor's memory from being reused before what is queued on `stream` has run (record_stream)."""


def refuse_unmapped(driver: Driver) -> None:
    """Raises InvalidArgument for a GPU whose kernels cannot reach host memory: rings and control words are there."""
    if not driver.facts.maps_host_memory:
        raise InvalidArgument(
            f"GPU {driver.facts.name} cannot map host memory, where command rings lie; use device='cpu'"
        )
