"""For test_api_fuzz: arguments of every kind, and ranks that survive whatever they are called with."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import event
from hypothesis import strategies as st

from tests.end_to_end.play import playing
from tests.end_to_end.steps import LowLatencyStep, ThroughputStep
from tests.end_to_end.world import World
from tests.uccl_ep.ranks import MIB
from uccl_ep import Buffer, InvalidArgument, NotSupported, SettingsMismatch
from uccl_ep.group.thread_group import ThreadGroup

LIMIT_S = 40.0  # of one call on all ranks; the ranks' own deadline is half of it
HIDDEN, TOKENS, TOPK = 128, 5, 2

# ---- values ----------------------------------------------------------------------------------------------------------

_EDGES = [-(1 << 70), -(1 << 31), -2, -1, 0, 1, 2, 3, 7, 64, 128, 1 << 16, *((1 << n) - 1 for n in (31, 32, 41, 71))]
_DTYPES = [
    torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int16, torch.int32,
    torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn,
]  # fmt: skip
_SIZES = st.sampled_from([0, 1, 2, 3, TOKENS, 6, 8, 16, 33, HIDDEN])
_FORMS = ["plain", "transposed", "every second", "expanded", "odd address", "meta", "sparse", "needs grad"]


def tensor_of(shape: Sequence[int], dtype: torch.dtype, form: str, fill: int, seed: int) -> torch.Tensor:
    """A tensor of a shape in one of the forms that users' tensors come in. fill 0: bits at random, else that number."""
    generator = torch.Generator().manual_seed(seed)
    count = 1
    for size in shape:
        count *= size
    # One byte more than needed in front, for a first element at an odd place.
    raw = torch.randint(-3, 4, (count + 1,), generator=generator) if fill == 0 else torch.full((count + 1,), fill)
    values = raw.to(torch.float32).to(dtype) if dtype == torch.float8_e4m3fn else raw.to(dtype)
    made = (values[1:] if form == "odd address" else values[:-1].clone()).view(list(shape))
    if form == "transposed" and made.dim() >= 2:
        return made.transpose(0, 1).contiguous().transpose(0, 1)
    if form == "every second" and made.dim():
        return made.repeat_interleave(2, -1)[..., ::2]
    if form == "expanded" and made.dim() and shape[0]:
        return made[:1].expand(shape)
    if form == "meta":
        return made.to("meta")
    if form == "sparse" and dtype in (torch.float32, torch.int64):
        return made.to_sparse()
    if form == "needs grad" and dtype in (torch.float32, torch.bfloat16):
        return made.requires_grad_()
    return made


TENSORS = st.builds(
    tensor_of,
    st.lists(_SIZES, max_size=3),
    st.sampled_from(_DTYPES),
    st.sampled_from(_FORMS),
    st.sampled_from([0, 1, -1, 100]),
    st.integers(0, 9),
)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.sampled_from(_EDGES), st.integers(-5, 300), st.floats(), st.text(max_size=3),
    st.sampled_from([b"x", (), [], {}, object(), (None, None), [1, 2], torch.float32, "2", 1 + 2j]),
)  # fmt: skip
ANYTHING = st.one_of(SCALARS, TENSORS, st.tuples(TENSORS, TENSORS), st.lists(TENSORS, max_size=3))


def near(*shape: int, dtypes: Sequence[torch.dtype]) -> st.SearchStrategy[torch.Tensor]:
    """Tensors that are almost, or wholly, what is wanted: only the form, the dtype or one size is another."""
    shapes = [list(shape), *([*shape[:i], n, *shape[i + 1 :]] for i in range(len(shape)) for n in (0, shape[i] + 1))]
    dtype = st.sampled_from([*dtypes, *dtypes, torch.float64])
    return st.builds(tensor_of, st.sampled_from(shapes), dtype, st.sampled_from(_FORMS), st.just(0), st.integers(0, 99))


def changes(**near_misses: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """One or two of the named arguments, with any value; half of the time one that is nearly good."""

    def draw(names: list[str]) -> st.SearchStrategy[dict[str, Any]]:
        return st.fixed_dictionaries({name: st.one_of(near_misses[name], ANYTHING) for name in names})

    names = st.lists(st.sampled_from(sorted(near_misses)), min_size=1, max_size=2, unique=True)
    return names.flatmap(draw)


# ---- ranks -----------------------------------------------------------------------------------------------------------


class Ranks:
    """Threads with a Buffer each, kept over all examples; each does what it is told, and tells how it ended."""

    def __init__(self, world: World) -> None:
        self.world, self.size = world, world.ranks
        self._jobs: list[queue.Queue[Any]] = [queue.Queue() for _ in range(self.size)]
        self._results: queue.Queue[tuple[int, Any]] = queue.Queue()
        for group in ThreadGroup.create(self.size):
            threading.Thread(target=self._live, args=(group,), daemon=True).start()

    def _live(self, group: ThreadGroup) -> None:
        rank, buffer = group.rank(), None
        while True:
            job = self._jobs[rank].get()
            try:
                buffer = buffer or Buffer(group, 4 * MIB, 2 * MIB, low_latency_mode=True)
                if job is None:
                    buffer.destroy()
                    return
                self._results.put((rank, job(buffer)))
            except BaseException as error:  # handed over
                self._results.put((rank, error))

    def all(self, job: Callable[[Buffer], Any]) -> list[Any]:
        """What every rank's job returned, or raised."""
        with self.world.environment():
            for jobs in self._jobs:
                jobs.put(job)
            results = dict(self._results.get(timeout=LIMIT_S) for _ in range(self.size))
        return [results[rank] for rank in range(self.size)]

    def must(self, job: Callable[[Buffer], Any]) -> list[Any]:
        """What every rank's job returned; raises what one raised."""
        results = self.all(job)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results

    def attempt(self, changed: dict[str, Any], job: Callable[[Buffer], Any]) -> list[Any] | None:
        """The results, or None after a refusal that is as it should be; then a whole round, compared to the bit."""
        results = self.all(job)
        errors = [result for result in results if isinstance(result, BaseException)]
        for error in errors:
            check_refusal(error, changed)
        assert len(errors) in (0, self.size), f"some ranks refused, others did not: {results}"
        event("refused" if errors else "accepted")
        if errors:
            self.must(self.good_round)
        return None if errors else results

    def good_round(self, buffer: Buffer) -> None:
        """Both modes, each result compared with the reference."""
        for step in (LowLatencyStep(5, max_tokens=TOKENS, hidden=HIDDEN, topk=TOPK), ThroughputStep(6, topk=TOPK)):
            for _ in playing(buffer, step, self.world.node_sizes):
                pass

    def close(self) -> None:
        """Destroys the Buffers."""
        for jobs in self._jobs:
            jobs.put(None)


def check_refusal(error: BaseException, changed: dict[str, Any]) -> None:
    """It names one of the changed arguments, or the memory that they need, and what is allowed for it."""
    told = isinstance(error, SettingsMismatch) and "refused this dispatch" in str(error)  # by a rank that refuses it
    if not told and not isinstance(error, (InvalidArgument, NotSupported)):
        raise AssertionError(f"{type(error).__name__} instead of a refusal for {changed}: {error}") from error
    text = str(error)
    names = [*changed, "num_nvl_bytes", "num_rdma_bytes"]
    assert any(re.search(rf"(?<!\w){name}(?!\w)", text) for name in names), f"{text!r} names none of {names}"
    assert told or isinstance(error, NotSupported) or re.search("must be|need|at most|up to|[Pp]ass ", text), text
