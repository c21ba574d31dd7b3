"""What is simulated: GPUs and NICs of published testbeds, each number with its source.

Three kinds of numbers, told apart in the comments:

- *given*: a vendor's figure or one that upstream published about the part itself;
- *fitted*: one constant a platform, found by `fit.py` on the rows that `published.py` marks as fitted;
- *assumed*: nobody published it; what depends on it says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from uccl_ep.errors import one_of, refuse

NO_LIMIT = 1e9


@dataclass(frozen=True)
class Gpu:
    """One GPU, and its links to others of its node.

    Attributes:
        memory_gb_per_s: 10^9 bytes a second of device memory.
        node_gb_per_s: to or from all GPUs of its node together, in a call that stays on the node.
        forward_gb_per_s: the same while the kernel also serves the network.
        start_us: from launch until the first row leaves, and from the last arrival until the kernel ends.
    """

    name: str
    memory_gb_per_s: float
    node_gb_per_s: float
    forward_gb_per_s: float
    start_us: float


@dataclass(frozen=True)
class Nic:
    """The NICs of one GPU, and the network behind them.

    Attributes:
        count: NICs of a GPU; proxy threads share them evenly.
        gb_per_s: payload that one NIC moves, each way.
        message_us: of one NIC, beside the bytes, at each end.
        latency_us: from doorbell to remote memory of an empty network. jitter_us: mean of what comes on top
            (exponential).
        ordered: each queue pair delivers in order (RC); else nothing is (SRD).
        queue_pairs: of one proxy thread to one peer.
        onset, congested_share: a port that more than `onset` ranks send to keeps onset / ranks of its rate, and at
            least the share.
        stream_gb_per_s: most that one pair of ranks reaches in a throughput combine.
    """

    name: str
    count: int
    gb_per_s: float
    message_us: float
    latency_us: float
    jitter_us: float
    ordered: bool
    queue_pairs: int = 1
    onset: int = 1 << 20
    congested_share: float = 1.0
    stream_gb_per_s: float = NO_LIMIT


@dataclass(frozen=True)
class Platform:
    """A testbed.

    Attributes:
        proxy_us: of a proxy thread, for one command. threads: of a GPU.
        efa: upstream's counters travel as immediates.
        host_us: of a throughput round, beside its kernels: layout, and counts that the host waits for. 0: the published
            figures lack it.
    """

    name: str
    gpu: Gpu
    nic: Nic
    ranks_per_node: int = 8
    efa: bool = False
    proxy_us: float = 0.5  # given: over 8 Mops/s of a GPU by four threads
    threads: int = 4  # given
    host_us: float = 0.0


# Memory: given, vendors' data sheets. The other three: fitted; start_us of MI355X and GH200, which have no low-latency
# rows, is MI300X's.
H200 = Gpu("H200", 4800.0, 326.0, 169.0, 2.6)
B200 = Gpu("B200", 8000.0, 364.0, 190.0, 24.3)
MI300X = Gpu("MI300X", 5300.0, 300.0, 270.0, 36.6)
MI355X = Gpu("MI355X", 8000.0, 342.0, 284.0, 36.6)
# Four to a node, each linked to each: nothing was published that tells forwarding from the node's own calls.
GH200 = Gpu("GH200", 4000.0, 405.0, 405.0, 36.6)

# EFA: 43.7 GB/s of a GPU is given (writes of 4 MB along rails, on p5), and so is the share that is left across rails
# (20.1 of 43.7). The onset of 8 is assumed: the widest fan-in at which published rows show no loss. Half of the given
# round trip of 15 to 25 us is 10; the jitter is assumed, so that writes take the given 20 to 50 us under load.
# RC: 400 Gb/s less RoCE headers at 4 KB is 48.9 GB/s; half of a given round trip of 10 us; jitter assumed; 8 data queue
# pairs of a thread and peer are given.


def _efa(name: str, count: int, message_us: float, stream_gb_per_s: float = NO_LIMIT) -> Nic:
    return Nic(name, count, 43.7 / count, message_us, 10.0, 5.0, False, 1, 8, 0.46, stream_gb_per_s)


def _rc(name: str, gb_per_s: float = 48.9, stream_gb_per_s: float = NO_LIMIT) -> Nic:
    return Nic(name, 1, gb_per_s, 0.0063, 5.0, 0.5, True, 8, stream_gb_per_s=stream_gb_per_s)


PLATFORMS = {
    one.name: one
    for one in (
        # message_us and the rate of a pair: fitted.
        Platform("p5en", H200, _efa("EFAv3, 2 x 200G", 2, 0.256, 9.35), efa=True),
        # Taken over: half of p5en's, one NIC having the work of two. Fitted here it would come out as nothing at all.
        Platform("p6-b200", B200, _efa("EFAv4, 400G", 1, 0.128), efa=True),
        # The same machines in AWS's harness, which counts a whole round of the slowest rank. host_us: fitted. Its rows
        # of four nodes show no loss from fan-in, which is therefore left out.
        Platform(
            "p6-b200-aws", B200, replace(_efa("EFAv4, 400G", 1, 0.128), congested_share=1.0), 8, True, host_us=1782
        ),
        # message_us: fitted here, taken over by the others, which have no low-latency rows.
        Platform("mi300x-cx7", MI300X, _rc("ConnectX-7, 400G")),
        # Both fitted: upstream runs this NIC with one write in flight, which holds each pair of ranks.
        Platform("mi300x-thor2", MI300X, _rc("Thor-2, 400G", 41.8, 22.9)),
        Platform("mi355x-pollara", MI355X, _rc("Pollara, 400G")),
        # The rate is fitted: 21.9 of the 24.3 that single writes reach.
        Platform("gh200-cxi", GH200, Nic("Slingshot, 200G", 1, 21.9, 0.0063, 5.0, 0.5, False, 1), 4),
    )
}


def platform(name: str) -> Platform:
    """By name.

    Raises:
        InvalidArgument: no such platform.
    """
    if name not in PLATFORMS:
        refuse("--platform", name, one_of(PLATFORMS))
    return PLATFORMS[name]
