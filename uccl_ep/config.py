"""DeepEP V1's `Config`: the tuning knobs of the throughput mode, its buffer size hints and its tables per rank count.

Signatures, rules and numbers are those of DeepEP V1 so that an integrator's code and JSON files work unchanged; where
DeepEP refuses a rank count, this module goes on with a documented rule instead.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from operator import index

from uccl_ep.errors import refuse
from uccl_ep.sizes import round_up

DEFAULT_NUM_SMS = 20
_RANKS_PER_NODE = 8  # what DeepEP's size formulas count with
_SOURCE_META_BYTES = 8  # per row between nodes: source node, and one bit per destination rank
_TOPK_IDX_BYTES = 8  # int64 expert ids
_MAX_TOPK = 128  # room that the formulas reserve per row, not a limit on top-k
_MAX_SCALES = 128  # likewise, for float32 scales
_FLOAT_BYTES = 4
_INT_BYTES = 4
_ALIGN_BYTES = 128
_NVL_METADATA_INTS_PER_NODE = 2
_NVL_METADATA_INTS = 3
_RDMA_METADATA_INTS = 18  # per node and channel: counts and prefixes of 8 ranks and their totals
_RDMA_ROW_ALIGN_BYTES = 16


@dataclass(frozen=True)
class Config:
    """Chunk sizes (in tokens) and the number of streaming multiprocessors of one throughput dispatch or combine.

    Positional and keyword names are DeepEP's. All fields can be read; `num_max_rdma_chunked_recv_tokens` is stored
    rounded up to a multiple of `num_max_rdma_chunked_send_tokens`, as DeepEP does.

    Args:
        num_sms: multiprocessors that move data; half as many channels. 0 or more.
        num_max_nvl_chunked_send_tokens: tokens per step inside a node, at least 1 and below the receive size.
        num_max_nvl_chunked_recv_tokens: slots of a queue inside a node.
        num_max_rdma_chunked_send_tokens: tokens per step between nodes, at least 1 and at most half the receive size,
            since the receiver returns slots lazily and a sender must always have room for one more step.
        num_max_rdma_chunked_recv_tokens: slots of a queue between nodes.

    Raises:
        InvalidArgument (a ValueError): a value outside what is said above.
    """

    num_sms: int = DEFAULT_NUM_SMS
    num_max_nvl_chunked_send_tokens: int = 6
    num_max_nvl_chunked_recv_tokens: int = 256
    num_max_rdma_chunked_send_tokens: int = 6
    num_max_rdma_chunked_recv_tokens: int = 256

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            least = 0 if name == "num_sms" else 1
            try:
                number = index(value)  # takes NumPy's and torch's whole numbers, refuses 6.0
            except TypeError:
                refuse(f"Config.{name}", value, f"a whole number, {least} or more")
            if number < least:
                refuse(f"Config.{name}", value, f"{least} or more")
            object.__setattr__(self, name, number)
        if self.nvl_send >= self.nvl_recv:
            refuse(
                "Config.num_max_nvl_chunked_send_tokens",
                self.nvl_send,
                f"less than num_max_nvl_chunked_recv_tokens={self.nvl_recv}",
            )
        rounded = round_up(self.rdma_recv, self.rdma_send)
        if self.rdma_send * 2 > rounded:
            refuse(
                "Config.num_max_rdma_chunked_send_tokens",
                self.rdma_send,
                f"at most half of num_max_rdma_chunked_recv_tokens={self.rdma_recv} (rounded up to {rounded})",
            )
        object.__setattr__(self, "num_max_rdma_chunked_recv_tokens", rounded)

    @property
    def num_channels(self) -> int:
        """Independent streams between two ranks: one per pair of multiprocessors."""
        return self.num_sms // 2

    @property
    def nvl_send(self) -> int:
        """Tokens per step inside a node."""
        return self.num_max_nvl_chunked_send_tokens

    @property
    def nvl_recv(self) -> int:
        """Slots of a queue inside a node, in tokens."""
        return self.num_max_nvl_chunked_recv_tokens

    @property
    def rdma_send(self) -> int:
        """Tokens per step between nodes."""
        return self.num_max_rdma_chunked_send_tokens

    @property
    def rdma_recv(self) -> int:
        """Slots of a queue between nodes, in tokens; a multiple of `rdma_send`."""
        return self.num_max_rdma_chunked_recv_tokens

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes of DeepEP's buffer inside a node.

        Formula, with C channels, R nodes and V ranks a node: roundup128(C V (2R + 3) 4 + C V nvl_recv
        (hidden_bytes + 8 + 128 x 8 + 128 x 4 + 128 x 4)). DeepEP takes N < 8 or a multiple of 8 ranks; for every other
        N, R is N / 8 rounded up.

        Args:
            hidden_bytes: bytes of one token's row.
            num_ranks: N, 1 or more.

        Raises:
            InvalidArgument: see the arguments; also an odd `num_sms` with more than 8 ranks.
        """
        nodes, ranks_in_node = self._shape(hidden_bytes, num_ranks)
        pairs = self.num_channels * ranks_in_node
        metadata = pairs * (_NVL_METADATA_INTS_PER_NODE * nodes + _NVL_METADATA_INTS) * _INT_BYTES
        return round_up(metadata + pairs * self.nvl_recv * _row_bytes(hidden_bytes), _ALIGN_BYTES)

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes of DeepEP's buffer between nodes; 0 when all ranks fit in one node of 8.

        Formula, with C channels and R nodes: roundup128(C R 18 x 2 x 4 + 2 C R rdma_recv
        (hidden_bytes + 8 + 128 x 8 + 128 x 4 + 128 x 4 + 16)). For N not a multiple of 8, R is N / 8 rounded up.

        Args:
            hidden_bytes: bytes of one token's row.
            num_ranks: N, 1 or more.

        Raises:
            InvalidArgument: see the arguments; also an odd `num_sms` with more than 8 ranks.
        """
        nodes, _ = self._shape(hidden_bytes, num_ranks)
        if num_ranks <= _RANKS_PER_NODE:
            return 0
        pairs = self.num_channels * nodes
        metadata = pairs * _RDMA_METADATA_INTS * 2 * _INT_BYTES
        rows = 2 * pairs * self.rdma_recv * (_row_bytes(hidden_bytes) + _RDMA_ROW_ALIGN_BYTES)
        return round_up(metadata + rows, _ALIGN_BYTES)

    def _shape(self, hidden_bytes: int, num_ranks: int) -> tuple[int, int]:
        if hidden_bytes < 1:
            refuse("hidden_bytes", hidden_bytes, "1 or more", "Bytes of one token's row: channels x itemsize.")
        if num_ranks < 1:
            refuse("num_ranks", num_ranks, "1 or more")
        if num_ranks > _RANKS_PER_NODE and self.num_sms % 2:
            refuse("Config.num_sms", self.num_sms, "an even number with more than 8 ranks")
        return -(-num_ranks // _RANKS_PER_NODE), min(num_ranks, _RANKS_PER_NODE)


def _row_bytes(hidden_bytes: int) -> int:
    extras = _MAX_TOPK * _TOPK_IDX_BYTES + _MAX_TOPK * _FLOAT_BYTES + _MAX_SCALES * _FLOAT_BYTES
    return hidden_bytes + _SOURCE_META_BYTES + extras


# ranks: (nvl_send, nvl_recv, rdma_send, rdma_recv), DeepEP's measured choices.
_DISPATCH = {
    2: (24, 256, 6, 128),
    4: (6, 256, 6, 128),
    8: (6, 256, 6, 128),
    16: (36, 288, 20, 128),
    24: (32, 288, 8, 128),
    32: (32, 288, 8, 128),
    48: (32, 288, 8, 128),
    64: (32, 288, 8, 128),
    96: (20, 480, 12, 128),
    128: (20, 560, 12, 128),
    144: (32, 720, 12, 128),
    160: (28, 720, 12, 128),
}
_COMBINE = {
    2: (10, 256, 6, 128),
    4: (9, 256, 6, 128),
    8: (4, 256, 6, 128),
    16: (4, 288, 12, 128),
    24: (1, 288, 8, 128),
    32: (1, 288, 8, 128),
    48: (1, 288, 8, 128),
    64: (1, 288, 8, 128),
    96: (1, 480, 8, 128),
    128: (1, 560, 8, 128),
    144: (2, 720, 8, 128),
    160: (2, 720, 8, 128),
}


def dispatch_config(num_ranks: int, num_sms: int = DEFAULT_NUM_SMS) -> Config:
    """DeepEP's dispatch settings for `num_ranks`.

    A count that DeepEP does not list takes the nearest listed count above it, and any count above 160 takes that of
    160: chunk sizes only tune speed here, so a good guess is better than DeepEP's assertion.

    Raises:
        InvalidArgument: `num_ranks` below 1, or `num_sms` below 0.
    """
    return _lookup(_DISPATCH, num_ranks, num_sms)


def combine_config(num_ranks: int, num_sms: int = DEFAULT_NUM_SMS) -> Config:
    """DeepEP's combine settings for `num_ranks`; the rule for unlisted counts is that of `dispatch_config`.

    Raises:
        InvalidArgument: `num_ranks` below 1, or `num_sms` below 0.
    """
    return _lookup(_COMBINE, num_ranks, num_sms)


def _lookup(table: dict[int, tuple[int, int, int, int]], num_ranks: int, num_sms: int) -> Config:
    if num_ranks < 1:
        refuse("num_ranks", num_ranks, "1 or more")
    listed = next((ranks for ranks in table if ranks >= num_ranks), max(table))
    # A call without a config asks for the same one again and again.
    return _checked(num_sms, table[listed]) if type(num_sms) is int else Config(num_sms, *table[listed])


@functools.lru_cache(256)
def _checked(num_sms: int, chunks: tuple[int, int, int, int]) -> Config:
    return Config(num_sms, *chunks)
