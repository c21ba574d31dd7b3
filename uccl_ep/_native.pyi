"""
Native core of uccl_ep: memory segments, the proxy engine, and the kernels' CPU build.
"""

from collections.abc import Sequence
import enum
from typing import Annotated, Final

import numpy
from numpy.typing import NDArray

import uccl_ep.device.protocol


MAX_RANKS: int = 4096

MAX_EXPERTS: int = 4096

MAX_TOKENS_PER_RANK: int = 65536

MAX_TOPK: int = 32

MAX_RANKS_PER_NODE: int = 64

MAX_CHANNELS: int = 64

MAX_HIDDEN: int = 262144

MAX_REGION_BYTES: int = 1099511627776

MAX_WRITE_BYTES: int = 16777200

class FaultKind(enum.IntEnum):
    NONE = 0

    TIMEOUT = 1

    PEER_LOST = 2

    RING_FULL = 3

    BAD_COMMAND = 4

    MISMATCH = 5

    TRANSPORT = 6

    BAD_ARRIVAL = 7

    WITHDRAWN = 8

class WaitPhase(enum.IntEnum):
    NONE = 0

    RING = 1

    DISPATCH_SEND = 2

    DISPATCH_RECEIVE = 3

    COMBINE_SEND = 4

    COMBINE_RECEIVE = 5

    COUNTS = 6

    BARRIER = 7

    START = 8

    STAGING_REUSE = 9

    TEARDOWN = 10

    COMPUTE_SIGNAL = 11

    COMBINE_WEIGHTS = 12

    COMBINE_REDUCE = 13

    COMBINE_SUMS = 14

    BARRIER_SEND = 15

class DetailKind(enum.IntEnum):
    NONE = 0

    CHANNEL = 1

    LOCAL_EXPERT = 2

    MISMATCH_FIELD = 3

    LAYOUT_PART = 4

class MismatchField(enum.IntEnum):
    CHANNELS = 0

    EXPERTS = 1

    TOPK = 2

    ROW_BYTES = 3

    SCALE_BYTES = 4

    HAS_IDS = 5

    HAS_WEIGHTS = 6

    RECEIVED_ROWS = 7

    MAX_TOKENS = 8

    HIDDEN = 9

    ROW_FORMAT = 10

    COMBINE_FORM = 11

    CALL = 12

    ORIGIN = 13

    TAG = 14

    DTYPE = 15

class CallKind(enum.IntEnum):
    NONE = 0

    LOW_LATENCY_DISPATCH = 1

    LOW_LATENCY_COMBINE = 2

    CACHED_DISPATCH = 3

    COMBINE = 4

class LayoutPart(enum.IntEnum):
    NONE = 0

    LACKS_RANK = 1

    NAMES_RANK = 2

    TOKENS_PER_RANK = 3

    TOKENS_PER_NODE = 4

    TOKENS_PER_EXPERT = 5

class Phase(enum.IntEnum):
    DISPATCH = 0

    COMBINE = 1

    COUNTS = 2

    SPARE = 3

    WEIGHTS = 4

    REDUCED = 5

    IDENTITY = 6

class ImmediateKind(enum.IntEnum):
    ARRIVE = 1

    EXPECT = 2

    SEQUENCE = 3

    CREDIT = 4

    BARRIER = 5

class EventKind(enum.IntEnum):
    NONE = 0

    POPPED = 1

    POSTED = 2

    COMPLETED = 3

    ARRIVAL = 4

    PUBLISHED = 5

    STALLED = 6

    FAULT = 7

    PARTED = 8

    BARRIER = 9

class PartReason(enum.IntEnum):
    ENDED = 0

    CONNECTION = 1

    GOODBYE = 2

    LEFT_OUT = 3

class PeerStat(enum.IntEnum):
    ROWS_SENT = 0

    BYTES_SENT = 1

    ROWS_RECEIVED = 2

    BYTES_RECEIVED = 3

    WAIT_NS = 4

class RowFormat(enum.IntEnum):
    BF16 = 0

    FP8 = 1

    FP8_UE8M0 = 2

    NVFP4 = 3

    LOGFMT = 4

    MXFP8 = 5

    NVFP4_ROW = 6

NO_NODE: int = 4294967295

DEPARTED_LEAVING: int = 1

DEPARTED_LEFT: int = 2

DEPARTED_VOTED_AGAINST: int = 3

DEPARTED_VALUES: int = 3

DEPARTED_SILENT: int = 4

RING_TAIL_OFFSET: int = 0

RING_DONE_OFFSET: int = 64

RING_HEAD_OFFSET: int = 128

EXPECT_BYTES: int = 48

IDENTITY_BYTES: int = 16

class Segment:
    """A memfd that other processes of this host can map."""

    @staticmethod
    def create(name: str, bytes: int) -> Segment: ...

    @staticmethod
    def open(pid: int, fd: int, bytes: int) -> Segment: ...

    @staticmethod
    def map(fd: int, bytes: int) -> Segment: ...

    @staticmethod
    def adopt(fd: int, bytes: int) -> Segment: ...

    @property
    def address(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    @property
    def fd(self) -> int:
        """-1 of one that is only mapped."""

    def give_back(self, offset: int, bytes: int) -> bool:
        """
        Gives whole pages back to the system; they read as zeros again. False: it refused.
        """

    def prefer_node(self, node: int) -> bool:
        """
        Pages that are first used from now on come from this NUMA node. False: the system refuses.
        """

    def numpy(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
        """
        A uint8 array over the whole segment, which stays mapped while the array lives.
        """

class NicSettings:
    def __init__(self) -> None: ...

    @property
    def device(self) -> str: ...

    @device.setter
    def device(self, arg: str, /) -> None: ...

    @property
    def port(self) -> int: ...

    @port.setter
    def port(self, arg: int, /) -> None: ...

    @property
    def gid_index(self) -> int: ...

    @gid_index.setter
    def gid_index(self, arg: int, /) -> None: ...

class FabricSettings:
    def __init__(self) -> None: ...

    @property
    def nics(self) -> list[NicSettings]: ...

    @nics.setter
    def nics(self, arg: Sequence[NicSettings], /) -> None: ...

    @property
    def provider(self) -> str: ...

    @provider.setter
    def provider(self, arg: str, /) -> None: ...

    @property
    def queue_pairs(self) -> int: ...

    @queue_pairs.setter
    def queue_pairs(self, arg: int, /) -> None: ...

    @property
    def service_level(self) -> int: ...

    @service_level.setter
    def service_level(self, arg: int, /) -> None: ...

    @property
    def traffic_class(self) -> int: ...

    @traffic_class.setter
    def traffic_class(self, arg: int, /) -> None: ...

    @property
    def hop_limit(self) -> int: ...

    @hop_limit.setter
    def hop_limit(self, arg: int, /) -> None: ...

    @property
    def mtu(self) -> int: ...

    @mtu.setter
    def mtu(self, arg: int, /) -> None: ...

    @property
    def udp_source_port(self) -> int: ...

    @udp_source_port.setter
    def udp_source_port(self, arg: int, /) -> None: ...

    @property
    def timeout(self) -> int: ...

    @timeout.setter
    def timeout(self, arg: int, /) -> None: ...

    @property
    def retries(self) -> int: ...

    @retries.setter
    def retries(self, arg: int, /) -> None: ...

    @property
    def relaxed_ordering(self) -> bool: ...

    @relaxed_ordering.setter
    def relaxed_ordering(self, arg: bool, /) -> None: ...

    @property
    def flush_by_read(self) -> bool: ...

    @flush_by_read.setter
    def flush_by_read(self, arg: bool, /) -> None: ...

def explain_network_code(family: str, code: int, nics: Sequence[str] = []) -> str:
    """
    A network family's error code in words, behind the name of the NIC that it is of, where that is known; empty for 0.
    """

class SpanSettings:
    def __init__(self) -> None: ...

    @property
    def offset(self) -> int: ...

    @offset.setter
    def offset(self, arg: int, /) -> None: ...

    @property
    def bytes(self) -> int: ...

    @bytes.setter
    def bytes(self, arg: int, /) -> None: ...

    @property
    def fd(self) -> int: ...

    @fd.setter
    def fd(self, arg: int, /) -> None: ...

    @property
    def dmabuf_fds(self) -> list[int]: ...

    @dmabuf_fds.setter
    def dmabuf_fds(self, arg: Sequence[int], /) -> None: ...

    @property
    def address(self) -> int: ...

    @address.setter
    def address(self, arg: int, /) -> None: ...

class ProxySettings:
    def __init__(self) -> None: ...

    @property
    def rank(self) -> int: ...

    @rank.setter
    def rank(self, arg: int, /) -> None: ...

    @property
    def num_ranks(self) -> int: ...

    @num_ranks.setter
    def num_ranks(self, arg: int, /) -> None: ...

    @property
    def num_workers(self) -> int: ...

    @num_workers.setter
    def num_workers(self, arg: int, /) -> None: ...

    @property
    def spans(self) -> list[SpanSettings]: ...

    @spans.setter
    def spans(self, arg: Sequence[SpanSettings], /) -> None: ...

    @property
    def late_span(self) -> int: ...

    @late_span.setter
    def late_span(self, arg: int, /) -> None: ...

    @property
    def control_offset(self) -> int: ...

    @control_offset.setter
    def control_offset(self, arg: int, /) -> None: ...

    @property
    def num_channels(self) -> int: ...

    @num_channels.setter
    def num_channels(self, arg: int, /) -> None: ...

    @property
    def rings_fd(self) -> int: ...

    @rings_fd.setter
    def rings_fd(self, arg: int, /) -> None: ...

    @property
    def num_rings(self) -> int: ...

    @num_rings.setter
    def num_rings(self, arg: int, /) -> None: ...

    @property
    def ring_capacity(self) -> int: ...

    @ring_capacity.setter
    def ring_capacity(self, arg: int, /) -> None: ...

    @property
    def counters_fd(self) -> int: ...

    @counters_fd.setter
    def counters_fd(self, arg: int, /) -> None: ...

    @property
    def events_fd(self) -> int: ...

    @events_fd.setter
    def events_fd(self, arg: int, /) -> None: ...

    @property
    def event_capacity(self) -> int: ...

    @event_capacity.setter
    def event_capacity(self, arg: int, /) -> None: ...

    @property
    def trace(self) -> bool: ...

    @trace.setter
    def trace(self, arg: bool, /) -> None: ...

    @property
    def family(self) -> str: ...

    @family.setter
    def family(self, arg: str, /) -> None: ...

    @property
    def session(self) -> int: ...

    @session.setter
    def session(self, arg: int, /) -> None: ...

    @property
    def secret(self) -> bytes: ...

    @secret.setter
    def secret(self, arg: bytes, /) -> None: ...

    @property
    def interface_address(self) -> str: ...

    @interface_address.setter
    def interface_address(self, arg: str, /) -> None: ...

    @property
    def max_in_flight(self) -> int: ...

    @max_in_flight.setter
    def max_in_flight(self, arg: int, /) -> None: ...

    @property
    def max_in_flight_bytes(self) -> int: ...

    @max_in_flight_bytes.setter
    def max_in_flight_bytes(self, arg: int, /) -> None: ...

    @property
    def max_in_flight_bytes_all(self) -> int: ...

    @max_in_flight_bytes_all.setter
    def max_in_flight_bytes_all(self, arg: int, /) -> None: ...

    @property
    def nap_when_idle(self) -> bool: ...

    @nap_when_idle.setter
    def nap_when_idle(self, arg: bool, /) -> None: ...

    @property
    def shuffle_seed(self) -> int: ...

    @shuffle_seed.setter
    def shuffle_seed(self, arg: int, /) -> None: ...

    @property
    def connect_timeout_ns(self) -> int: ...

    @connect_timeout_ns.setter
    def connect_timeout_ns(self, arg: int, /) -> None: ...

    @property
    def cpus(self) -> list[int]: ...

    @cpus.setter
    def cpus(self, arg: Sequence[int], /) -> None: ...

    @property
    def near_cpus(self) -> list[int]: ...

    @near_cpus.setter
    def near_cpus(self, arg: Sequence[int], /) -> None: ...

    @property
    def losses_are_absences(self) -> bool: ...

    @losses_are_absences.setter
    def losses_are_absences(self, arg: bool, /) -> None: ...

    @property
    def fabric(self) -> FabricSettings: ...

    @fabric.setter
    def fabric(self, arg: FabricSettings, /) -> None: ...

    @property
    def flush_call(self) -> int: ...

    @flush_call.setter
    def flush_call(self, arg: int, /) -> None: ...

    @property
    def context_call(self) -> int: ...

    @context_call.setter
    def context_call(self, arg: int, /) -> None: ...

    @property
    def context(self) -> int: ...

    @context.setter
    def context(self, arg: int, /) -> None: ...

    @property
    def unreached(self) -> list[int]: ...

    @unreached.setter
    def unreached(self, arg: Sequence[int], /) -> None: ...

class Proxy:
    """The proxy of one rank: transport and engine threads."""

    def __init__(self, settings: ProxySettings) -> None: ...

    def local_address(self) -> bytes: ...

    def connect(self, addresses: Sequence[bytes], peer_bytes: Sequence[int], peer_pids: Sequence[int]) -> None: ...

    def start(self) -> None: ...

    def stop(self, drain_ns: int) -> None: ...

    def dismiss_peer(self, peer: int) -> None: ...

    def admit(self, bytes: int, address: int = 0, dmabufs: Sequence[int] = []) -> None:
        """
        Registers the first bytes of the late span with the NICs; what is new of them may be a GPU's memory.
        """

    def notes(self) -> list[tuple[str, str]]:
        """(choice, why) of what the transport chose at run time."""

    def queue_pairs(self) -> list[dict[str, int]]:
        """What each queue pair has carried; empty in families without."""

class ProxyGuard:
    """Makes the end of a rank's proxy process a fault of the rank."""

    def __init__(self, pid: int, control: int, rank: int) -> None: ...

    def stop(self) -> None: ...

def ring_bytes(capacity: int) -> int: ...

def counters_bytes(num_workers: int, num_ranks: int) -> int: ...

def read_counters(address: int, num_workers: int, num_ranks: int) -> tuple[list[dict[str, int]], list[dict[str, int]]]: ...

def rings_idle(address: int, num_rings: int, capacity: int) -> bool: ...

def report_lost_peer(control: int, peer: int) -> None:
    """
    Makes the loss of a peer the rank's fault, unless it has one; ends every wait of the rank.
    """

def exclude_peer(control: int, layout: ControlLayout, peer: int, out: bool) -> None:
    """
    Tells a rank's proxy that the rank leaves a peer out, or no longer does.
    """

def report_ended_peer(control: int, layout: ControlLayout, peer: int) -> None:
    """
    Tells a rank's proxy that the process of a peer on another host has ended; of one that has said goodbye, nothing.
    """

def ring_doorbell(control: int) -> None:
    """Wakes a rank's proxy: kernels are about to be launched."""

def keep_awake(control: int) -> None:
    """
    Tells a rank's proxy that kernels will also run without ring_doorbell: no long sleep any more.
    """

def read_fault(control: int) -> dict[str, int] | None: ...

class ControlLayout:
    def __init__(self) -> None: ...

    @property
    def num_ranks(self) -> int: ...

    @num_ranks.setter
    def num_ranks(self, arg: int, /) -> None: ...

    @property
    def num_channels(self) -> int: ...

    @num_channels.setter
    def num_channels(self, arg: int, /) -> None: ...

    def bytes(self) -> int: ...

    SOME_DEPARTED: Final[int] = ...
    """(arg: object, /) -> int"""

    def departed(self, peer: int) -> int: ...

    def flag(self, phase: int, source: int) -> int: ...

    def flag_time(self, source: int) -> int: ...

    def excluded(self, peer: int) -> int: ...

    def ended(self, peer: int) -> int: ...

    def parted(self, peer: int) -> int: ...

    def consumed(self, phase: int, reader: int) -> int: ...

    def resume(self, phase: int, source: int) -> int: ...

    def progress(self, phase: int, source: int) -> int: ...

class SignalLayout:
    def __init__(self) -> None: ...

    @property
    def num_ranks(self) -> int: ...

    @num_ranks.setter
    def num_ranks(self, arg: int, /) -> None: ...

    @property
    def num_channels(self) -> int: ...

    @num_channels.setter
    def num_channels(self, arg: int, /) -> None: ...

    @property
    def max_readers(self) -> int: ...

    @max_readers.setter
    def max_readers(self, arg: int, /) -> None: ...

    def flag(self, phase: int, source: int) -> int: ...

    def consumed(self, phase: int, reader: int) -> int: ...

    def stream_tail(self, direction: int, source: int, channel: int) -> int: ...

    def sent(self, direction: int, peer: int, channel: int) -> int: ...

    def bytes(self) -> int: ...

class LowLatencyLayout:
    def __init__(self) -> None: ...

    @property
    def max_tokens(self) -> int: ...

    @max_tokens.setter
    def max_tokens(self, arg: int, /) -> None: ...

    @property
    def hidden(self) -> int: ...

    @hidden.setter
    def hidden(self, arg: int, /) -> None: ...

    @property
    def max_topk(self) -> int: ...

    @max_topk.setter
    def max_topk(self, arg: int, /) -> None: ...

    @property
    def num_landing_slots(self) -> int: ...

    @num_landing_slots.setter
    def num_landing_slots(self, arg: int, /) -> None: ...

    @property
    def staging_rows(self) -> int: ...

    @staging_rows.setter
    def staging_rows(self, arg: int, /) -> None: ...

    @property
    def num_ranks(self) -> int: ...

    @num_ranks.setter
    def num_ranks(self, arg: int, /) -> None: ...

    @property
    def base(self) -> int: ...

    @base.setter
    def base(self, arg: int, /) -> None: ...

    @property
    def reduces(self) -> int: ...

    @reduces.setter
    def reduces(self, arg: int, /) -> None: ...

    def bytes(self) -> int: ...

    def set_bytes(self) -> int: ...

    def source_bytes(self) -> int: ...

    def slots_bytes(self) -> int: ...

    def staging_bytes(self) -> int: ...

    def reduction_bytes(self) -> int: ...

    def combine_row_bytes(self) -> int: ...

    @staticmethod
    def routing_bytes(tokens: int, topk: int) -> int: ...

    @staticmethod
    def weights_bytes(tokens: int, topk: int) -> int: ...

    @staticmethod
    def row_bytes(hidden: int, format: int) -> int: ...

    @staticmethod
    def row_unit(format: int) -> int:
        """Rows have a multiple of so many channels."""

    def sums_encoded(self) -> bool:
        """Sums of a node may be encoded."""

class RowShape:
    def __init__(self, payload_bytes: int = 0, scale_bytes: int = 0, topk: int = 0, has_ids: bool = False, has_weights: bool = False, dtype: int = 0) -> None: ...

    @property
    def payload_bytes(self) -> int: ...

    @payload_bytes.setter
    def payload_bytes(self, arg: int, /) -> None: ...

    @property
    def scale_bytes(self) -> int: ...

    @scale_bytes.setter
    def scale_bytes(self, arg: int, /) -> None: ...

    @property
    def topk(self) -> int: ...

    @topk.setter
    def topk(self, arg: int, /) -> None: ...

    @property
    def has_ids(self) -> int: ...

    @has_ids.setter
    def has_ids(self, arg: int, /) -> None: ...

    @property
    def has_weights(self) -> int: ...

    @has_weights.setter
    def has_weights(self, arg: int, /) -> None: ...

    @property
    def dtype(self) -> int: ...

    @dtype.setter
    def dtype(self, arg: int, /) -> None: ...

    def bytes(self) -> int: ...

class StreamGeometry:
    def __init__(self) -> None: ...

    @staticmethod
    def make(unit_bytes: int, num_channels: int, row_bytes: int) -> StreamGeometry: ...

    @staticmethod
    def fit(unit_bytes: int, most: int, row_bytes: int) -> StreamGeometry:
        """
        As many channels as fit, `most` at most; num_slots is 0 where not even one does.
        """

    @property
    def unit_bytes(self) -> int: ...

    @property
    def num_channels(self) -> int: ...

    @property
    def rows_per_chunk(self) -> int: ...

    @property
    def num_slots(self) -> int: ...

    @property
    def row_bytes(self) -> int: ...

    def __eq__(self, other: object | None) -> bool: ...

class ThroughputLayout:
    def __init__(self) -> None: ...

    @property
    def base(self) -> int: ...

    @base.setter
    def base(self, arg: int, /) -> None: ...

    @property
    def num_ranks(self) -> int: ...

    @num_ranks.setter
    def num_ranks(self, arg: int, /) -> None: ...

    @property
    def num_cells(self) -> int: ...

    @num_cells.setter
    def num_cells(self, arg: int, /) -> None: ...

    @property
    def num_landing_slots(self) -> int: ...

    @num_landing_slots.setter
    def num_landing_slots(self, arg: int, /) -> None: ...

    @property
    def max_readers(self) -> int: ...

    @max_readers.setter
    def max_readers(self, arg: int, /) -> None: ...

    @property
    def max_local_experts(self) -> int: ...

    @max_local_experts.setter
    def max_local_experts(self, arg: int, /) -> None: ...

    @property
    def unit_bytes(self) -> int: ...

    @unit_bytes.setter
    def unit_bytes(self, arg: int, /) -> None: ...

    @staticmethod
    def counts_bytes(channels: int, readers: int, local_experts: int) -> int:
        """What a source tells a cell before a dispatch."""

    def num_units(self) -> int: ...

    def bytes(self) -> int: ...

class LandingRanks:
    """Where rows of other nodes land."""

    def __init__(self, node_of: Sequence[int], cell_of: Sequence[int]) -> None: ...

    def of_source(self, source: int) -> list[int]:
        """
        [cells]: the rank of each cell where rows of a source, which is present, are read.
        """

    def in_cell(self, cell: int) -> list[int]:
        """
        [ranks]: the rank of a cell where rows of each source are read; NO_NODE for an absent source.
        """

class GroupShape:
    """What the numbering of ranks fixes."""

    @staticmethod
    def of(node_of: Sequence[int], cell_of: Sequence[int]) -> GroupShape:
        """`cell_of` empty: a cell is a node. NO_NODE: an absent rank."""

    @property
    def num_ranks(self) -> int: ...

    @property
    def num_nodes(self) -> int: ...

    @property
    def num_cells(self) -> int: ...

    @property
    def max_readers(self) -> int:
        """Ranks of the largest node."""

    @property
    def num_landing_slots(self) -> int:
        """Places for remote sources' rows; 0 on one node."""

    @property
    def num_units(self) -> int:
        """Units that the throughput part is cut into."""

class RegionPlan:
    """Offsets of a rank's regions."""

    def __init__(self, group: GroupShape, *, num_channels: int, max_local_experts: int, unit_bytes: int, low_latency_bytes: int) -> None: ...

    @property
    def signals(self) -> SignalLayout: ...

    @property
    def control(self) -> ControlLayout: ...

    @property
    def throughput(self) -> ThroughputLayout: ...

    @property
    def low_latency_base(self) -> int:
        """Where the low-latency part starts."""

    @property
    def control_offset(self) -> int:
        """Where data ends, in whole pages."""

    @property
    def zero_copy_offset(self) -> int: ...

class Event:
    def __init__(self) -> None: ...

    def query(self) -> bool: ...

    def wait(self, timeout_ns: int) -> bool: ...

class Stream:
    """An ordered queue of kernels: the CPU's stand-in for a CUDA stream."""

    def __init__(self, deferred: bool = False) -> None: ...

    def record(self) -> Event: ...

    def wait(self, event: Event) -> None: ...

    def finish(self) -> None: ...

    def synchronize(self) -> None: ...

def kernel_arguments() -> dict[str, int]:
    """Every kernel and the bytes of its argument struct."""

def shared_bytes(kernel: str, args: bytes, warps: int) -> int:
    """Shared memory of a block, for a kernel's argument struct as bytes."""

def launch(stream: Stream, kernel: str, args: bytes, blocks: int, warps: int, threads: int = 1) -> None:
    """
    Queues a kernel by name with its argument struct as bytes, as a GPU's driver does.
    """

class RankContext:
    @property
    def tag(self) -> int: ...

    @tag.setter
    def tag(self, arg: int, /) -> None: ...

    @property
    def bytes(self) -> bytes: ...

class RankTablesSettings:
    def __init__(self) -> None: ...

    @property
    def rank(self) -> int: ...

    @rank.setter
    def rank(self, arg: int, /) -> None: ...

    @property
    def node_of(self) -> list[int]: ...

    @node_of.setter
    def node_of(self, arg: Sequence[int], /) -> None: ...

    @property
    def cell_of(self) -> list[int]: ...

    @cell_of.setter
    def cell_of(self, arg: Sequence[int], /) -> None: ...

    @property
    def data(self) -> list[int]: ...

    @data.setter
    def data(self, arg: Sequence[int], /) -> None: ...

    @property
    def control(self) -> list[int]: ...

    @control.setter
    def control(self, arg: Sequence[int], /) -> None: ...

    @property
    def rings(self) -> int: ...

    @rings.setter
    def rings(self, arg: int, /) -> None: ...

    @property
    def num_rings(self) -> int: ...

    @num_rings.setter
    def num_rings(self, arg: int, /) -> None: ...

    @property
    def ring_capacity(self) -> int: ...

    @ring_capacity.setter
    def ring_capacity(self, arg: int, /) -> None: ...

    @property
    def ring_words(self) -> int: ...

    @ring_words.setter
    def ring_words(self, arg: int, /) -> None: ...

    @property
    def mask(self) -> int: ...

    @mask.setter
    def mask(self, arg: int, /) -> None: ...

    @property
    def peer_stats(self) -> int: ...

    @peer_stats.setter
    def peer_stats(self, arg: int, /) -> None: ...

    @property
    def shrink(self) -> bool: ...

    @shrink.setter
    def shrink(self, arg: bool, /) -> None: ...

    @property
    def timeout_ns(self) -> int: ...

    @timeout_ns.setter
    def timeout_ns(self, arg: int, /) -> None: ...

    @property
    def control_offset(self) -> int: ...

    @control_offset.setter
    def control_offset(self, arg: int, /) -> None: ...

    @property
    def num_channels(self) -> int: ...

    @num_channels.setter
    def num_channels(self, arg: int, /) -> None: ...

class RankTables:
    def __init__(self, settings: RankTablesSettings) -> None: ...

    @property
    def context(self) -> RankContext: ...

    def placed_at(self, address: int) -> tuple[bytes, RankContext]:
        """
        The tables' bytes and the context that points at them once they lie at `address`.
        """

PEER_STATS: int = 5

MAX_BLOCK_LANES: int = 512

WARP: int = 32

def logfmt_least_bytes(hidden: int) -> int:
    """A logfmt-10 combine row of which every unit is encoded."""

class DeviceShape:
    """
    A rank's share of the device that runs its launches: what shapes follow.
    """

    def __init__(self, num_sms: int, block_warps: int) -> None:
        """Of a GPU."""

    @staticmethod
    def of_host() -> DeviceShape:
        """Of a CPU."""

    @property
    def num_sms(self) -> int: ...

    @property
    def block_warps(self) -> int:
        """Most warps of a block."""

class Launch:
    """
    A kernel with its arguments, and what it asks of the device that runs it.
    """

    @property
    def kernel(self) -> str:
        """The kernel's name."""

    @property
    def args(self) -> bytes:
        """Its argument struct, as a launch passes it."""

    @property
    def blocks(self) -> int:
        """Blocks, or units of work."""

    @property
    def warps(self) -> int:
        """Warps of a block."""

    @property
    def exact(self) -> bool:
        """
        Whether all `blocks` must run at once. Otherwise the work goes round any number of blocks.
        """

    def queue(self, stream: Stream, blocks: int, threads: int) -> None:
        """Queues it on a stream of the CPU."""

def barrier_launch(rank: RankContext, round: int) -> Launch:
    """A barrier of all ranks; `round`: 1, 2, 3, ... the same on every rank."""

class LowLatencyCalls:
    """The low-latency calls of one rank as launches."""

    def __init__(self, rank: RankContext, layout: LowLatencyLayout, num_experts: int, workspace: uccl_ep.device.protocol.Memory | int | None | None, device: DeviceShape) -> None:
        """`workspace`: of workspace_bytes, zeroed once, 8-byte aligned."""

    @staticmethod
    def workspace_bytes(num_ranks: int) -> int:
        """Bytes that kernels count in from call to call."""

    @staticmethod
    def state_at() -> int:
        """Bytes into them to the LowLatencyState."""

    @property
    def dispatch_words(self) -> int:
        """u64 words of a dispatch, until it is received."""

    @staticmethod
    def batch_rows(row_bytes: int) -> int:
        """
        Rows that dispatch stages before it sends; a run of neighbours within a batch is one write.
        """

    def dispatch_send(self, words: uccl_ep.device.protocol.Memory | int | None | None, *, x: uccl_ep.device.protocol.Memory | int | None | None, topk_idx: uccl_ep.device.protocol.Memory | int | None | None, num_tokens: int, topk: int, format: int, round_scale: bool, global_scale: uccl_ep.device.protocol.Memory | int | None | None) -> Launch: ...

    def dispatch_recv(self, words: uccl_ep.device.protocol.Memory | int | None | None, *, format: int, recv_x: uccl_ep.device.protocol.Memory | int | None | None, recv_scales: uccl_ep.device.protocol.Memory | int | None | None, recv_count: uccl_ep.device.protocol.Memory | int | None | None, src_info: uccl_ep.device.protocol.Memory | int | None | None, layout_range: uccl_ep.device.protocol.Memory | int | None | None, cumulative_stats: uccl_ep.device.protocol.Memory | int | None | None, wait_stats: uccl_ep.device.protocol.Memory | int | None | None) -> Launch: ...

    def combine_send(self, words: uccl_ep.device.protocol.Memory | int | None | None, *, x: uccl_ep.device.protocol.Memory | int | None | None, row_stride: int, zero_copy_offset: int, x_at: int, src_info: uccl_ep.device.protocol.Memory | int | None | None, layout_range: uccl_ep.device.protocol.Memory | int | None | None, format: int, own_stay: bool, reduces: bool, node_reads: bool, topk_idx: uccl_ep.device.protocol.Memory | int | None | None, weights: uccl_ep.device.protocol.Memory | int | None | None, num_tokens: int, topk: int, signals: uccl_ep.device.protocol.Memory | int | None | None = None, signals_per_expert: int = 0, signal_rows: int = 0, signal_value: int = 0, blocks: int = 0) -> Launch:
        """
        `blocks`: 0 = as many as a combine takes that nothing is computed beside.
        """

    def combine_reduce(self, sent: Launch, *, wait_stats: uccl_ep.device.protocol.Memory | int | None | None, registered: uccl_ep.device.protocol.Memory | int | None | None) -> Launch:
        """Between the halves of a combine that reduces."""

    def combine_recv(self, sent: Launch, *, out: uccl_ep.device.protocol.Memory | int | None | None, topk_idx: uccl_ep.device.protocol.Memory | int | None | None, weights: uccl_ep.device.protocol.Memory | int | None | None, num_tokens: int, topk: int, wait_stats: uccl_ep.device.protocol.Memory | int | None | None, registered: uccl_ep.device.protocol.Memory | int | None | None) -> Launch:
        """`sent`: what combine_send returned."""

    COMBINE_WORDS: int = 2

    MAX_STAGING_ROWS: int = 2048

    DISPATCHES_AT: int = 2053

    COMBINES_AT: int = 2057

class RoutingTables:
    """The tables of one routing; sizes as in throughput/handle.py."""

    @property
    def channels(self) -> int: ...

    @property
    def num_tokens(self) -> int: ...

def routing_tables(*, channels: int, num_tokens: int, num_local_experts: int, is_token_in_rank: uccl_ep.device.protocol.Memory | int | None | None, channel_prefix: uccl_ep.device.protocol.Memory | int | None | None, node_rows: uccl_ep.device.protocol.Memory | int | None | None, recv_tokens: uccl_ep.device.protocol.Memory | int | None | None, recv_begin: uccl_ep.device.protocol.Memory | int | None | None, stream_rows: uccl_ep.device.protocol.Memory | int | None | None, reducer_tokens: uccl_ep.device.protocol.Memory | int | None | None, rank_prefix: uccl_ep.device.protocol.Memory | int | None | None, expert_counts: uccl_ep.device.protocol.Memory | int | None | None, recv_total: uccl_ep.device.protocol.Memory | int | None | None, number: uccl_ep.device.protocol.Memory | int | None | None) -> RoutingTables: ...

class ThroughputCalls:
    """The throughput calls of one rank as launches."""

    def __init__(self, rank: RankContext, layout: ThroughputLayout, workspace: uccl_ep.device.protocol.Memory | int | None | None, device: DeviceShape) -> None:
        """`workspace`: of WORKSPACE_BYTES, zeroed once, 8-byte aligned."""

    def layout(self, *, topk_idx: uccl_ep.device.protocol.Memory | int | None | None, num_tokens: int, topk: int, num_experts: int, num_tokens_per_rank: uccl_ep.device.protocol.Memory | int | None | None, num_tokens_per_node: uccl_ep.device.protocol.Memory | int | None | None, num_tokens_per_expert: uccl_ep.device.protocol.Memory | int | None | None, is_token_in_rank: uccl_ep.device.protocol.Memory | int | None | None) -> Launch: ...

    def counts(self, shape: RowShape, routing: RoutingTables, *, is_token_in_rank: uccl_ep.device.protocol.Memory | int | None | None, num_tokens_per_rank: uccl_ep.device.protocol.Memory | int | None | None, num_tokens_per_node: uccl_ep.device.protocol.Memory | int | None | None, num_tokens_per_expert: uccl_ep.device.protocol.Memory | int | None | None, topk_idx: uccl_ep.device.protocol.Memory | int | None | None, expert_alignment: int, findings: uccl_ep.device.protocol.Memory | int | None | None, refusal: uccl_ep.device.protocol.Memory | int | None | None) -> Launch: ...

    def findings_words(self, num_experts: int) -> int:
        """u32 words of `findings`."""

    def settle(self, geometry: StreamGeometry, of_combine: bool) -> Launch:
        """Before streams of a direction are cut in another way than before."""

    def dispatch(self, shape: RowShape, geometry: StreamGeometry, routing: RoutingTables, *, x: uccl_ep.device.protocol.Memory | int | None | None, scales: uccl_ep.device.protocol.Memory | int | None | None, scale_token_stride: int, scale_stride: int, topk_idx: uccl_ep.device.protocol.Memory | int | None | None, topk_weights: uccl_ep.device.protocol.Memory | int | None | None, recv_x: uccl_ep.device.protocol.Memory | int | None | None, recv_scales: uccl_ep.device.protocol.Memory | int | None | None, recv_topk_idx: uccl_ep.device.protocol.Memory | int | None | None, recv_topk_weights: uccl_ep.device.protocol.Memory | int | None | None, recv_src_idx: uccl_ep.device.protocol.Memory | int | None | None, capacity: int, pad_tail: bool, identify: bool) -> Launch:
        """`identify`: no counts were exchanged for this call."""

    def combine(self, shape: RowShape, geometry: StreamGeometry, routing: RoutingTables, *, workspace: uccl_ep.device.protocol.Memory | int | None | None, hidden: int, x: uccl_ep.device.protocol.Memory | int | None | None, topk_weights: uccl_ep.device.protocol.Memory | int | None | None, recv_src_idx: uccl_ep.device.protocol.Memory | int | None | None, bias0: uccl_ep.device.protocol.Memory | int | None | None, bias1: uccl_ep.device.protocol.Memory | int | None | None, out: uccl_ep.device.protocol.Memory | int | None | None, out_weights: uccl_ep.device.protocol.Memory | int | None | None, arenas: uccl_ep.device.protocol.Memory | int | None | None, x_in_arena: bool, x_offset: int) -> Launch:
        """`workspace`: of combine_bytes, for this call alone."""

    def combine_bytes(self, channels: int, hidden: int) -> int: ...

    WORKSPACE_BYTES: int = 56

LAYOUT_REFUSAL_WORDS: int = 5

MAX_PARTIALS: int = 64

class ProbeSettings:
    def __init__(self) -> None: ...

    @property
    def family(self) -> str: ...

    @family.setter
    def family(self, arg: str, /) -> None: ...

    @property
    def fabric(self) -> FabricSettings: ...

    @fabric.setter
    def fabric(self, arg: FabricSettings, /) -> None: ...

    @property
    def interface_address(self) -> str: ...

    @interface_address.setter
    def interface_address(self, arg: str, /) -> None: ...

    @property
    def rank(self) -> int: ...

    @rank.setter
    def rank(self, arg: int, /) -> None: ...

    @property
    def session(self) -> int: ...

    @session.setter
    def session(self, arg: int, /) -> None: ...

    @property
    def secret(self) -> bytes: ...

    @secret.setter
    def secret(self, arg: bytes, /) -> None: ...

    @property
    def most_bytes(self) -> int: ...

    @most_bytes.setter
    def most_bytes(self, arg: int, /) -> None: ...

    @property
    def timeout_ns(self) -> int: ...

    @timeout_ns.setter
    def timeout_ns(self, arg: int, /) -> None: ...

DMABUF_BYTES: int = 1073741824

def why_no_dmabuf(device: str, fd: int, num_bytes: int, address: int) -> str:
    """
    Why an RDMA device does not register a dma-buf that holds `num_bytes` at `address`; empty: it does.
    """

class TransportProbe:
    """Measures one network family between two processes."""

    def __init__(self, settings: ProbeSettings) -> None: ...

    def local_address(self) -> bytes: ...

    def connect(self, addresses: Sequence[bytes]) -> None: ...

    def notes(self) -> list[tuple[str, str]]:
        """
        (what was chosen, why) of everything that the family chose at run time.
        """

    def stream(self, bytes: int, count: int) -> float:
        """
        Seconds that rank 0 takes to write `count` times `bytes` to rank 1 and to hear that all is there and right.
        """

    def round_trips(self, bytes: int, count: int) -> float:
        """Seconds of `count` writes of `bytes` there and back, one at a time."""

EVENT_BYTES: int = 32

def events_bytes(num_workers: int, capacity: int) -> int:
    """Size of an events segment."""

def read_events(address: int, capacity: int, worker: int) -> tuple[int, int, bool, bytes]:
    """
    (number of the first event, events ever, whether every command is traced, the events of EVENT_BYTES bytes) of a worker, from a mapped events segment; it may be being written.
    """

def range_of_ids(address: int, count: int, wide: bool) -> tuple[int, int]:
    """
    The least and the greatest of `count` adjacent int64 (wide) or int32 in host memory.
    """
