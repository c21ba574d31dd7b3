"""The machine on small kernels (small_kernels.h): each mistake is found and named, and what is right passes."""

from __future__ import annotations

import ctypes
import functools
import random
import struct
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from tests.gpu.ptx.machine import Counts, Machine, MachineError
from tests.gpu.ptx.programs import ARCHITECTURES, lowered

pytestmark = [pytest.mark.compile, pytest.mark.timeout(60)]
E4M3 = ("-DUCCL_SIMT_HARDWARE_E4M3",)
WORDS = 4096


@functools.cache
def program(arch: str) -> str:
    options = () if arch == "compute_80" else E4M3
    return lowered('#include "tests/gpu/ptx/small_kernels.h"\n', "small", arch, options)


class Bench:
    """A machine with some memory: words that kernels and the host share."""

    def __init__(
        self,
        seed: int = 1,
        arch: str = "compute_90a",
        kind: str = "device",
        lag: tuple[int, int] = (0, 0),
        patience_s: float = 0.2,
    ) -> None:
        self.machine = Machine(seed, preempt=2, lag=lag, patience_s=patience_s)
        self.machine.load(program(arch))
        self.words = (ctypes.c_uint32 * WORDS)()
        self.data = ctypes.addressof(self.words)
        self.flag = self.data + 4 * WORDS // 2
        self.machine.region(self.data, 4 * WORDS, kind)

    def run(
        self,
        kernel: str,
        *args: int,
        grid: int = 1,
        lanes: int = 32,
        stream: int = 0,
        device: int = 0,
        sms: int = 4,
        registers: int = 32,
        shared: int = 256,
    ) -> Counts:
        packed = struct.pack(f"<{len(args)}Q", *args)
        snapshot = self.machine.snapshot(1)
        shape = (grid, lanes, shared, registers, stream, device, snapshot, 0, sms)
        return self.machine.launch(kernel, shape, packed)

    def message(self, kernel: str, **shape: int) -> Counts:
        return self.run(kernel, self.data, self.flag, **shape)

    def beside(self, *runs: Callable[[], Counts]) -> list[BaseException]:
        """All of them at once; what went wrong."""
        errors: list[BaseException] = []

        def one(body: Callable[[], Counts]) -> None:
            try:
                body()
            except MachineError as error:
                errors.append(error)

        threads = [threading.Thread(target=one, args=(body,)) for body in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return errors


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.machine.close()


# ---- addresses and collectives ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "where", "said"),
    [
        ("reads_at", lambda b: b.data + 2, "misaligned"),
        ("reads_at", lambda b: 0, "null pointer"),
        ("reads_at", lambda b: b.data + 4 * WORDS, "of no allocation"),
        ("reads_at", lambda b: b.data - 4, "of no allocation"),
        ("calls_shared_global", lambda b: 0, "shared memory"),
        ("writes_shared", lambda b: 64, "beyond the 256 that the launch gives"),
        ("reads_unwritten_shared", lambda b: 31, "shared memory that nobody has written"),
        ("divides", lambda b: 0, "division by zero"),
        ("leaves_lanes_out", lambda b: 16, "for all of them"),
        ("parts_at_a_barrier", lambda b: 7, "other lanes of its warp wait at"),
        ("partial_mask", lambda b: 0, "not all lanes are in its mask"),
        ("ends_before_a_barrier", lambda b: 1, "of its block"),
    ],
)
def test_ptx_machine_refuses(bench: Bench, kernel: str, where: Callable[[Bench], int], said: str) -> None:
    with pytest.raises(MachineError) as raised:
        bench.run(kernel, bench.data, where(bench), lanes=64)
    assert said in str(raised.value)
    assert (
        kernel in str(raised.value) and "small_kernels.h:" in str(raised.value) or "backend_cuda.h" in str(raised.value)
    )


@pytest.mark.parametrize(
    ("kernel", "number"),
    [
        ("writes_shared", 63),
        ("reads_unwritten_shared", 64),
        ("divides", 2),
        ("leaves_lanes_out", 32),
        ("ends_before_a_barrier", 0),
    ],
)
def test_ptx_machine_accepts(bench: Bench, kernel: str, number: int) -> None:
    bench.run(kernel, bench.data, number, lanes=64)


def test_ptx_machine_arguments_have_the_kernels_size(bench: Bench) -> None:
    with pytest.raises(MachineError, match="takes 16 bytes of arguments, not 8"):
        bench.run("message", bench.data)


# ---- order -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("kernel", "shape", "said"),
    [
        ("message", {"grid": 2}, ""),
        ("message_not_released", {"grid": 2}, "it reads what message_not_released"),
        ("message_not_acquired", {"grid": 2}, "it reads what message_not_acquired"),
        ("last_one_reads", {"grid": 4, "lanes": 64}, ""),
        ("neighbours_with_barrier", {}, ""),
        ("neighbours_with_shuffle", {}, "without order"),
        ("reads_then_another_writes", {}, "it overwrites what reads_then_another_writes"),
        ("shared_without_barrier", {}, "without order"),
    ],
)
def test_ptx_machine_orders_in_a_launch(kernel: str, shape: dict[str, int], said: str, seed: int) -> None:
    bench = Bench(seed)
    if said:
        with pytest.raises(MachineError, match=said):
            bench.message(kernel, **shape)
    else:
        bench.message(kernel, **shape)
    bench.machine.close()


def test_ptx_machine_lanes_dawdle_by_one_seed_of_three() -> None:
    def goes_wrong(seed: int) -> bool:
        bench = Bench(seed)
        try:
            bench.message("message_not_acquired_at_first", grid=2)
        except MachineError as error:
            return "it reads what message_not_acquired_at_first" in str(error)
        finally:
            bench.machine.close()
        return False

    wrong = {seed for seed in range(60) if goes_wrong(seed)}
    assert wrong and {seed % 3 for seed in wrong} == {0}


@pytest.mark.parametrize(
    ("sender", "receiver", "device", "ok"),
    [
        ("sends_to_system", "receives", 1, True),
        ("sends_to_gpu", "receives", 0, True),  # on one GPU
        ("sends_to_gpu", "receives", 1, False),
        ("sends_to_system", "receives_relaxed", 1, False),
    ],
)
def test_ptx_machine_scopes_between_gpus(bench: Bench, sender: str, receiver: str, device: int, ok: bool) -> None:
    errors = bench.beside(
        lambda: bench.message(receiver, stream=1, device=device), lambda: bench.message(sender, stream=0, device=0)
    )
    assert (not errors) is ok, errors
    assert ok or "small_kernels.h" in str(errors[0]) or "backend_cuda.h" in str(errors[0])


def test_ptx_machine_streams_and_events_order(bench: Bench) -> None:
    bench.words[WORDS // 2] = 1  # nobody waits
    bench.message("sends_to_gpu", stream=0)
    event = bench.machine.record(0)
    bench.machine.wait(2, event)
    bench.message("receives_relaxed", stream=2, device=1)
    for known in (event, bench.machine.record(2)):
        bench.machine.host_learns(7, known)
    snapshot = bench.machine.snapshot(7)
    packed = struct.pack("<2Q", bench.data, bench.flag)
    bench.machine.launch("receives_relaxed", (1, 32, 256, 32, 3, 1, snapshot, 0, 4), packed)
    with pytest.raises(MachineError, match="without order"):
        bench.message("receives_relaxed", stream=4)


@pytest.mark.parametrize(
    ("receiver", "ok"), [("receives", True), ("receives_relaxed", False), ("receives_beside", False)]
)
def test_ptx_machine_what_the_host_wrote_must_be_acquired(bench: Bench, receiver: str, ok: bool) -> None:
    bench.words[0], bench.words[WORDS // 2] = 5, 1
    bench.message(receiver)  # a launch brings what the host has written before
    bench.words[WORDS // 2] = 0

    def host() -> Counts:
        timer.wait(0.2)
        bench.words[0] = 6
        bench.words[WORDS // 2] = 1
        return Counts("", 0, 0, 0, 0, 0, [])

    timer = threading.Event()
    errors = bench.beside(lambda: bench.message(receiver), host)
    assert (not errors) is ok, errors
    assert ok or "the host wrote" in str(errors[0])


def _host_reads(kernel: str, seed: int) -> int:
    """How many of 64 words the host misses when it has seen the flag."""
    bench = Bench(seed, kind="pinned")
    missed = 0

    def host() -> Counts:
        nonlocal missed
        while bench.words[WORDS // 2] == 0:
            pass
        missed = sum(word != 42 for word in bench.words[:64])
        bench.words[WORDS // 2] = 2
        return Counts("", 0, 0, 0, 0, 0, [])

    assert not bench.beside(lambda: bench.message(kernel), host)
    bench.machine.close()
    return missed


def test_ptx_machine_plays_weak_order_to_the_host() -> None:
    assert sum(_host_reads("tells_host_released", seed) for seed in range(8)) == 0
    assert sum(_host_reads("tells_host_relaxed", seed) for seed in range(8)) > 0


# ---- arithmetic ------------------------------------------------------------------------------------------------------


def test_ptx_machine_casts_as_torch_does(bench: Bench) -> None:
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    between = torch.nextafter(every, torch.tensor(float("inf")))
    values = torch.cat([every, between])
    codes = torch.empty(values.numel() // 2, dtype=torch.int16)
    for tensor in (values, codes):
        bench.machine.region(tensor.data_ptr(), tensor.nbytes, "tensor")
    bench.run("casts_pairs", values.data_ptr(), codes.data_ptr(), codes.numel())
    got = codes.view(torch.uint8)
    want = values.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    same = (got == want) | (values.isnan() & (got & 0x7F == 0x7F))
    assert bool(same.all()), values[~same][:8]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_ptx_machine_computes_as_the_language_says(arch: str) -> None:
    bench = Bench(arch=arch)
    r = random.Random(3)
    for _ in range(200):
        a, b = (r.getrandbits(r.choice((8, 31, 32, 33, 64))) for _ in range(2))
        bench.run("computes", a, b, bench.data)
        got = list((ctypes.c_int64 * 16).from_address(bench.data))
        assert got == [_signed(value, 64) for value in _computed(a, b)], (a, b)
    bench.machine.close()


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _computed(a: int, b: int) -> list[int]:
    x, y = a & 0xFFFFFFFF, b & 0xFFFFFFFF
    sx, sy = _signed(x, 32), _signed(y, 32)
    as_float = struct.unpack("<f", struct.pack("<f", y))[0]
    return [
        int(sx < sy),
        int(_signed(a, 64) < _signed(b, 64)),
        int(x < y),
        sx >> (y & 31),
        x >> (y & 31),
        a << (b & 63),
        x * y,
        a * b,
        a % b if b else 0,
        _signed(x, 8) + _signed(y, 16),
        x.bit_count() + 32 - y.bit_length(),
        int(f"{x:032b}"[::-1], 2),
        min(int(as_float), 0xFFFFFFFF),
        min(sx, sy),
        max(x, y),
        (x ^ 0xFFFFFFFF) ^ y,
    ]


# ---- trips to memory -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kernel", "wide"), [("copies_one_by_one", 4), ("copies_four_at_once", 1)])
def test_ptx_machine_loads_on_their_way_together_are_one_trip(bench: Bench, kernel: str, wide: int) -> None:
    counts = bench.run(kernel, bench.data, bench.data + 4096, lanes=32)
    assert (counts.trips.wide, counts.trips.line, counts.trips.near) == (wide, 0, 0)
    assert counts.loaded == counts.stored == 4 * 16 * 32 and counts.loaded_away == counts.stored_away == 0


@pytest.mark.parametrize("owner", [1, 2])
def test_ptx_machine_a_trip_to_another_device_is_its_own_kind(bench: Bench, owner: int) -> None:
    bench.machine.region(bench.data, 4 * WORDS, "device", owner)
    counts = bench.run("copies_four_at_once", bench.data, bench.data + 4096, lanes=32, device=1)
    away = owner == 2
    assert (counts.trips.away, counts.trips.wide) == (away, not away)
    assert counts.loaded_away == counts.stored_away == 2048 * away


def test_ptx_machine_a_chain_of_loads_is_a_trip_each(bench: Bench) -> None:
    bench.words[0], bench.words[64] = 64, 65  # another line, then one more word of it
    counts = bench.run("follows", bench.data, bench.data + 1024, lanes=32)
    # The lane that waited longest was the first to read both lines.
    assert (counts.trips.wide, counts.trips.line + counts.trips.near) == (0, 3) and counts.trips.line >= 1


def test_ptx_machine_counts_words_of_the_host_and_releases(bench: Bench) -> None:
    pinned = Bench(kind="pinned")
    for at, (host, flag) in ((pinned, (1, 0)), (bench, (0, 1))):
        counts = at.run("reads_at", at.data + 1024, at.data, lanes=32)
        assert (counts.trips.host, counts.trips.flag, counts.trips.fence) == (host, flag, 0)
    pinned.machine.close()
