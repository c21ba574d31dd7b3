"""Every UCCL_EP_* environment variable: one table, parsed once into a frozen Settings object.

No other file reads the environment. An unknown UCCL_EP_* name warns and names the nearest one; a bad value is refused
with what is allowed; `describe()` is where the documentation's table comes from.
"""

from __future__ import annotations

import difflib
import functools
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from uccl_ep.errors import one_of, refuse
from uccl_ep.system import setting_values as values
from uccl_ep.system.site_settings import SiteValue, read_site

PREFIX = "UCCL_EP_"


@dataclass(frozen=True)
class Settings:
    """What the environment says, checked. Every field is one row of `VARIABLES`; defaults are those of the table.

    Some stand for "choose": `ranks_per_node` = 0 (ranks of one host are one node), `host_blocks` = 0, `gid_index` = -1,
    `mtu` = 0 (what ports have), and empty names.
    """

    ranks_per_node: int = 0
    mnnvl: str = "auto"
    transport: str = "auto"
    proxy: str = "thread"
    proxy_threads: int = 1
    rings: int = 2
    ring_capacity: int = 1024
    max_in_flight: int = 64
    max_in_flight_bytes: int = 8 << 20
    max_in_flight_bytes_all: int = 0
    proxy_idle: str = "auto"
    low_latency_combine: str = "direct"
    low_latency_topk: int = 32
    timeout_s: float = 100.0
    interface: str = ""
    pin_cpus: tuple[int, ...] = ()
    host_blocks: int = 0
    host_threads: int = 1
    device: str = "auto"
    explain: bool = False
    shuffle_seed: int = 0
    cache_dir: str = ""
    nics: str = ""
    gid_index: int = -1
    gpu_memory: str = "auto"
    provider: str = ""
    queue_pairs: int = 1
    service_level: int = 0
    traffic_class: int = 0
    hop_limit: int = 64
    mtu: int = 0
    udp_source_port: int = 0
    ib_timeout: int = 20
    ib_retry_cnt: int = 7
    relaxed_ordering: bool = True
    observe_dir: str = ""
    metrics_port: int = 0
    job_id: str = ""
    flight_recorder: str = ""
    trace: str = ""
    as_deep_ep: bool = False
    site: tuple[SiteValue, ...] = field(default=(), compare=False)  # no variable: which of these others' variables gave

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Parse the UCCL_EP_* entries of `environment` (default: os.environ); blank means default. Under them lie those
        of NCCL, UCCL and NVSHMEM that mean the same (site_settings.py), so that a default is what the cluster has set.

        Warns:
            UserWarning: once per unknown UCCL_EP_* name, with the nearest known one, and per value of others that
                cannot be honoured.

        Raises:
            InvalidArgument: a value outside what its row allows; the message names the variable.
        """
        source = os.environ if environment is None else environment
        for words in unknown_names(source):
            warnings.warn(words, stacklevel=2)
        given: dict[str, Value] = {
            variable.field: variable.parse(source[variable.name])
            for variable in VARIABLES
            if source.get(variable.name, "").strip()
        }
        rows = {variable.field: variable for variable in VARIABLES}
        site, aloud = read_site(source, given, lambda name, text: "" if rows[name].takes(text) else rows[name].allowed)
        for words in aloud:
            warnings.warn(words, stacklevel=2)
        given.update({s.field: rows[s.field].read(s.reading) for s in site if s.field != "interface"})
        return cls(**given, site=tuple(site))  # type: ignore[arg-type]  # a parser returns its field's type; tested

    def from_site(self, name: str) -> SiteValue | None:
        """Which variable of another library has given a field; None: none."""
        return next((value for value in self.site if value.field == name), None)

    def said_by(self, name: str) -> str:
        """`UCCL_EP_MTU`, or `NCCL_IB_TC` where that has given the field: for reasons and refusals."""
        value = self.from_site(name)
        return PREFIX + name.upper() if value is None else value.variable


Value = int | float | bool | str | tuple[int, ...]
Parser = Callable[[str], Value]  # raises ValueError on a bad text; the row says what is allowed


@dataclass(frozen=True)
class Variable:
    """One environment variable: its name, type, what is allowed, what it is for, and how its text is read."""

    name: str
    kind: str
    allowed: str
    help: str
    read: Parser

    @property
    def field(self) -> str:
        """The attribute of Settings that this variable sets."""
        return self.name.removeprefix(PREFIX).lower()

    @property
    def default(self) -> Value:
        """The value without the variable."""
        value: Value = getattr(Settings, self.field)
        return value

    def parse(self, text: str) -> Value:
        """The checked value of `text`.

        Raises:
            InvalidArgument: `text` is not allowed.
        """
        try:
            return self.read(text.strip())
        except (ValueError, OverflowError):
            refuse(self.name, text, one_of(self.allowed.split(" | ")), f"{self.help} Default: {_show(self.default)}.")

    def takes(self, text: str) -> bool:
        """Whether `text` is allowed."""
        try:
            self.read(text)
        except (ValueError, OverflowError):
            return False
        return True


@dataclass(frozen=True)
class DescribedVariable:
    """A row for documentation; everything is text."""

    name: str
    kind: str
    default: str
    allowed: str
    help: str


def unknown_names(environment: Mapping[str, str]) -> list[str]:
    """A sentence for each UCCL_EP_* name that is no variable: it names the nearest one."""
    known = {variable.name for variable in VARIABLES}
    strangers = [name for name in sorted(environment) if name.startswith(PREFIX) and name not in known]
    nearest = [difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0] for name in strangers]
    return [f"unknown environment variable {n}: ignored. Nearest: {k}" for n, k in zip(strangers, nearest, strict=True)]


def describe() -> list[DescribedVariable]:
    """One row per environment variable, in the table's order."""
    return [DescribedVariable(v.name, v.kind, _show(v.default), v.allowed, v.help) for v in VARIABLES]


@functools.cache
def settings() -> Settings:
    """The process's settings, parsed from its environment at the first call and the same object ever after.

    Raises:
        InvalidArgument: see Settings.from_environment; not remembered, so a corrected environment can be parsed.
    """
    return Settings.from_environment()


def _show(value: Value) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "empty"
    return "empty" if value == "" else str(value)


def _integer(name: str, least: int, most: int, help_text: str) -> Variable:
    return Variable(PREFIX + name, "int", f"{least} to {most}", help_text, lambda text: values.whole(text, least, most))


def _choice(name: str, choices: tuple[str, ...], help_text: str) -> Variable:
    def read(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(text)
        return text.lower()

    return Variable(PREFIX + name, "choice", " | ".join(choices), help_text, read)


def _path(name: str, help_text: str) -> Variable:
    return Variable(PREFIX + name, "path", "a folder, made when missing", help_text, values.folder)


def _switch(name: str, help_text: str) -> Variable:
    return Variable(PREFIX + name, "bool", "1 | 0 | true | false | yes | no | on | off", help_text, values.boolean)


VARIABLES: tuple[Variable, ...] = (
    _integer("RANKS_PER_NODE", 0, 64, "Ranks that reach each other by load and store; 0: all ranks of one host."),
    _choice(
        "MNNVL",
        ("auto", "1", "0"),
        "Make hosts whose GPUs share an NVLink domain one node; auto: where allow_mnnvl=True asks for it.",
    ),
    _choice(
        "TRANSPORT",
        ("auto", "loopback", "shared_memory", "tcp", "verbs", "efa", "libfabric"),
        "Network family; auto chooses and explains.",
    ),
    _choice("PROXY", ("thread", "process"), "Run the proxy as threads of the rank, or as a process beside it."),
    _integer("PROXY_THREADS", 1, 64, "Proxy worker threads per rank."),
    _integer("RINGS", 1, 64, "Command rings per proxy thread."),
    Variable(
        PREFIX + "RING_CAPACITY",
        "int",
        f"a power of two, 2 to {1 << 20}",
        "Commands of 16 bytes that one ring holds.",
        values.power_of_two,
    ),
    # 512 is half of what the immediate's 10-bit sequence field counts, so that no reorder overflows a window.
    _integer("MAX_IN_FLIGHT", 1, 512, "Writes per peer that are posted and not complete."),
    Variable(
        PREFIX + "MAX_IN_FLIGHT_BYTES",
        "bytes",
        f"16 to {1 << 40}, also with a unit such as 8MiB",
        "Bytes per peer that are posted and not complete.",
        values.num_bytes,
    ),
    Variable(
        PREFIX + "MAX_IN_FLIGHT_BYTES_ALL",
        "bytes",
        f"0, or 16 to {1 << 40}, also with a unit such as 3MiB",
        "The same to all peers of a rank together, shared by its proxy threads; 0: no bound beyond each peer's.",
        lambda text: 0 if text == "0" else values.num_bytes(text),
    ),
    _choice(
        "PROXY_IDLE",
        ("auto", "spin", "nap"),
        "A proxy thread without work spins or naps; auto: spins for GPUs with NICs if each thread has a core.",
    ),
    _choice(
        "LOW_LATENCY_COMBINE",
        ("direct", "node", "auto"),
        "Rows of a low-latency combine: each to its owner by itself, or summed in the node first; auto: the model's.",
    ),
    _integer("LOW_LATENCY_TOPK", 1, 32, "Most experts of a token in low latency: fewer take less memory."),
    Variable(
        PREFIX + "TIMEOUT_S", "float", "a number of seconds above 0", "When a wait for peers ends.", values.seconds
    ),
    Variable(
        PREFIX + "INTERFACE",
        "address",
        "an IPv4 or IPv6 address of one interface",
        "The address to listen on; empty: 127.0.0.1 when all ranks share a host.",
        values.address,
    ),
    Variable(
        PREFIX + "PIN_CPUS",
        "list of int",
        "CPU numbers and ranges such as 0,2,4-7",
        "CPUs for proxy threads, in order; empty: not pinned.",
        values.cpu_list,
    ),
    _integer("HOST_BLOCKS", 0, 65535, "Blocks of each kernel that runs on the CPU; 0: choose."),
    _integer(
        "HOST_THREADS",
        0,
        1024,
        "Worker threads of each kernel that runs on the CPU; 0: the rank's share of what affinity and cgroup allow.",
    ),
    Variable(
        PREFIX + "DEVICE",
        "device",
        "auto | cpu | cuda | cuda:N | hip | hip:N",
        "Where kernels run; auto: on a GPU where one can be used.",
        values.device,
    ),
    _switch("EXPLAIN", "Print every choice."),
    _integer("SHUFFLE_SEED", 0, 2**64 - 1, "Loopback: deliver in a random order from this seed; 0: as posted."),
    _path("CACHE_DIR", "Where compiled GPU kernels are kept; empty: uccl-ep in the user's cache folder."),
    Variable(
        PREFIX + "NICS",
        "list of names",
        "mlx5_0,mlx5_1:1 to use, or ^mlx5_2,^mlx5_3 to leave out; * and ? stand for characters",
        "NICs (and ports) for verbs, efa and libfabric; empty: the nearest to each rank's GPU or CPUs.",
        values.nics,
    ),
    _integer("GID_INDEX", -1, 1023, "Entry of the port's GID table (RoCE, InfiniBand); -1: by rule."),
    _choice(
        "GPU_MEMORY",
        ("auto", "dmabuf", "peer_memory", "host"),
        "How NICs reach rows in a GPU's memory; host: rows lie in pinned host memory.",
    ),
    Variable(
        PREFIX + "PROVIDER",
        "name",
        "a libfabric provider: tcp, shm, cxi, efa, verbs, ...",
        "libfabric's provider; empty: the best that all ranks have.",
        values.word,
    ),
    _integer("QUEUE_PAIRS", 1, 64, "verbs: queue pairs per peer, proxy thread and NIC."),
    _integer("SERVICE_LEVEL", 0, 15, "InfiniBand's or EFA's service level; 0: EFA's for low latency on EFA."),
    _integer("TRAFFIC_CLASS", 0, 255, "RoCE: the IP packet's traffic class (DSCP times 4)."),
    _integer("HOP_LIMIT", 1, 255, "RoCE and routed InfiniBand: routers that a packet may pass."),
    Variable(
        PREFIX + "MTU",
        "bytes",
        "0 | 256 | 512 | 1024 | 2048 | 4096",
        "Payload of an RDMA packet; 0: the most that both ports of a connection have.",
        values.mtu,
    ),
    _integer("UDP_SOURCE_PORT", 0, 65535, "RoCE: first of a range of source ports, one a queue pair; 0: the driver's."),
    _integer(
        "IB_TIMEOUT", 1, 31, "verbs: a packet without an answer is sent again after 4.096 us times 2 to this power."
    ),
    _integer("IB_RETRY_CNT", 0, 7, "verbs: how often it is sent again before the peer counts as lost."),
    _switch("RELAXED_ORDERING", "verbs: a NIC may write the bytes of a message in any order; they are told of after."),
    _path(
        "OBSERVE_DIR",
        "Where ranks leave a file that `uccl-ep top --dir` finds them by; empty: nowhere, it finds them by itself.",
    ),
    _integer(
        "METRICS_PORT", 0, 65535, "TCP port for Prometheus: the lowest rank of each host serves its job; 0: none."
    ),
    Variable(
        PREFIX + "JOB_ID",
        "name",
        "letters, digits, and . _ - ;",
        "The job's name in metrics; empty: torchrun's or Slurm's, else the host and process that started the ranks.",
        values.word,
    ),
    Variable(
        PREFIX + "FLIGHT_RECORDER",
        "path",
        "a folder, made when missing, or off",
        "Where a rank leaves its flight record when a peer fails; empty: a folder of this user's in the temporary one.",
        lambda text: "off" if text.lower() == "off" else values.folder(text),
    ),
    _path(
        "TRACE",
        "Record every command, and leave each rank's record there at the end, for `uccl-ep trace`; empty: do not.",
    ),
    _switch(
        "AS_DEEP_EP", "import deep_ep gives uccl_ep, where something reads this as Python starts; see uccl_ep/drop_in."
    ),
)
