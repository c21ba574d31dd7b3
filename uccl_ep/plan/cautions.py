"""What a plan warns of: two ranks on one NIC, a fallback nobody asked for, ranks that differ, limits that are too low.

Each rule is a small function from the plan and what the ranks said to cautions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from uccl_ep.fabric.distance import Distance
from uccl_ep.fabric.facts import NIC_FAMILIES, Facts
from uccl_ep.group.self_description import UNLIMITED, SelfDescription, read_portrait
from uccl_ep.plan.fill import Agreed
from uccl_ep.plan.record import ERROR, LOUD, QUIET, Caution, GroupPlan, NicPlan, RankPlan
from uccl_ep.sizes import format_bytes

_LEVELS = (ERROR, LOUD, QUIET)
_MOST_SHOWN = 6


@dataclass(frozen=True)
class Told:
    """What the ranks said, read once."""

    agreed: Agreed

    @cached_property
    def facts(self) -> Mapping[int, Facts]:
        """Networks by rank."""
        return {i.rank: Facts.from_plain(i.fabric, i.rank) for i in self.agreed.hellos}

    @cached_property
    def portraits(self) -> Mapping[int, SelfDescription]:
        """Portraits by rank."""
        return {i.rank: read_portrait(i.self_description) for i in self.agreed.hellos}

    @cached_property
    def machine_of(self) -> Mapping[int, str]:
        """Host names by rank."""
        return {i.rank: i.hostname for i in self.agreed.hellos}


Rule = Callable[[GroupPlan, Told], Iterator[Caution]]


def find_cautions(plan: GroupPlan, agreed: Agreed) -> GroupPlan:
    """The plan with everything that should be known of it, worst first."""
    return replace(plan, cautions=_sorted([c for rule in RULES for c in rule(plan, Told(agreed))]))


def find_loud(plan: GroupPlan, agreed: Agreed) -> tuple[Caution, ...]:
    """Only what is said at every start; `plan` need not describe more ranks than those of one host."""
    found = _sorted([c for rule in LOUD_RULES for c in rule(plan, Told(agreed))])
    return tuple(caution for caution in found if caution.level == LOUD)


def _sorted(cautions: Sequence[Caution]) -> tuple[Caution, ...]:
    return tuple(sorted(cautions, key=lambda caution: _LEVELS.index(caution.level)))


def ranks_of(numbers: Sequence[int]) -> str:
    """ "ranks 0, 1, 2 and 5 more" """
    shown = ", ".join(map(str, numbers[:_MOST_SHOWN]))
    more = f" and {len(numbers) - _MOST_SHOWN} more" if len(numbers) > _MOST_SHOWN else ""
    return f"rank{'s' if len(numbers) > 1 else ''} {shown}{more}"


# ---- the group as a whole --------------------------------------------------------------------------------------------


def network_fallback(plan: GroupPlan, told: Told) -> Iterator[Caution]:
    """tcp, where some rank has a NIC that writes memory."""
    if plan.transport != "tcp" or told.agreed.settings.transport != "auto":
        return
    having = [rank for rank, facts in told.facts.items() if any(not port.software for port in facts.ports)]
    if not having:
        return
    without = [rank for rank in told.facts if rank not in having]
    why = told.agreed.fabric.whole_reason
    if without:
        reasons = list(dict.fromkeys(f"{f}: {why}" for r in without for f, why in told.facts[r].missing.items()))
        why = f"{ranks_of(without)}: {'; '.join(reasons[:_MOST_SHOWN])}"
    port = next(port for port in told.facts[having[0]].ports if not port.software)
    who = f"{ranks_of(having)} {'has' if len(having) == 1 else 'have'} a NIC that writes memory ({port} and others)"
    concerned = tuple(without or having)
    fix = f"uccl-ep doctor on {told.machine_of[concerned[0]]}; UCCL_EP_TRANSPORT=tcp says that it is meant"
    yield Caution(LOUD, "fallback", concerned, f"rows between hosts go by tcp although {who}. {why}", fix)


def memory_fallback(plan: GroupPlan, told: Told) -> Iterator[Caution]:
    """Rows of GPUs in host memory, though the network could reach the GPU's."""
    first = told.agreed.hellos[0]
    if first.device == "cpu" or plan.placement != "host" or plan.num_nodes == 1:
        return
    if plan.transport not in ("efa", "verbs") or told.agreed.settings.gpu_memory == "host":
        return
    closed = [r for r, facts in told.facts.items() if facts.gpu_memory not in ("dmabuf", "peer_memory")]
    text = f"rows of GPUs lie in pinned host memory and cross PCIe twice: {told.agreed.placement.reason}"
    fix = "uccl-ep doctor --path verbs --path cuda on that host; UCCL_EP_GPU_MEMORY=host says that it is meant"
    yield Caution(LOUD, "fallback", tuple(closed), text, fix)


def differing_settings(plan: GroupPlan, told: Told) -> Iterator[Caution]:
    """UCCL_EP_* values and versions that ranks need not share, and that differ all the same."""
    values: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, self_description in told.portraits.items():
        for name, value in self_description.settings:
            values[name][value].append(rank)
        for name in ("torch", "kernel", "python"):
            if getattr(self_description, name):
                values[name][getattr(self_description, name)].append(rank)
    for name, ranks in sorted(values.items()):
        if len(ranks) > 1:
            yield _difference(name, ranks, LOUD if name.startswith("UCCL_EP_") else QUIET)


def _difference(name: str, ranks: Mapping[str, Sequence[int]], level: str) -> Caution:
    """Whose value is not the most common one."""
    usual = max(ranks, key=lambda value: len(ranks[value]))
    odd = sorted(rank for value, some in ranks.items() if value != usual for rank in some)
    shown = "; ".join(f"{value or 'empty'} on {ranks_of(some)}" for value, some in ranks.items())
    fix = "set it alike on all ranks" if name.startswith("UCCL_EP_") else "install the same on all hosts"
    return Caution(level, "mismatch", tuple(odd), f"{name} differs between ranks: {shown}", fix)


def differing_networks(plan: GroupPlan, told: Told) -> Iterator[Caution]:
    """Ranks whose share of the network is not like the others'."""
    if plan.transport not in NIC_FAMILIES:
        return
    facts = told.facts
    ways = _by_value({rank: f.gpu_memory for rank, f in facts.items()})
    if plan.choices and len(ways) > 1 and told.agreed.hellos[0].device != "cpu":
        yield _difference("the way NICs reach GPU memory", ways, QUIET)
    rates = _by_value({rank.rank: f"{rank.gbps:g} Gb/s" for rank in plan.ranks if rank.nics})
    if len(rates) > 1:
        caution = _difference("NIC bandwidth of a rank", rates, QUIET)
        yield replace(caution, fix="uccl-ep doctor on the hosts of these ranks: ports may be down, or of another speed")
    sizes = _by_value({rank.rank: str(min(n.mtu for n in rank.nics)) for rank in plan.ranks if _all_mtus(rank.nics)})
    if len(sizes) > 1:
        yield replace(_difference("MTU", sizes, QUIET), fix="ip link set dev INTERFACE mtu 9000 on all hosts")


def _all_mtus(nics: Sequence[NicPlan]) -> bool:
    return bool(nics) and all(nic.mtu for nic in nics)


def _by_value(values: Mapping[int, str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for rank, value in values.items():
        found[value].append(rank)
    return found


# ---- ranks -----------------------------------------------------------------------------------------------------------


def shared_nics(plan: GroupPlan, told: Told) -> Iterator[Caution]:
    """Two ranks on one port."""
    users = _users(plan, lambda rank: [str(nic) for nic in rank.nics])
    found: dict[tuple[str, ...], list[_Crowded]] = defaultdict(list)
    for host, by_port in users.items():
        first = next(iter(by_port.values()))[0]
        software = {str(port) for port in told.facts[first].ports if port.software}  # has no rate of its own to share
        crowded = {name: ranks for name, ranks in by_port.items() if len(ranks) > 1 and name not in software}
        if crowded:
            idle = sorted({str(port) for port in told.facts[first].of(plan.transport)} - set(by_port))
            pattern = (*crowded, *idle)
            found[pattern].append(_Crowded(host, crowded, idle))
    for hosts in found.values():
        unused = hosts[0].idle
        beside = f"; {', '.join(unused[:_MOST_SHOWN])} carry nothing, since they are farther away" if unused else ""
        fix = "UCCL_EP_NICS names other ports" if unused else "use fewer ranks on a host, or hosts with a NIC for each"
        text = f"ranks share NICs, and with them their rate: {_crowds(hosts)}{beside}"
        yield Caution(LOUD, "shared NIC", _everybody(hosts), text, fix)


def shared_gpus(plan: GroupPlan, told: Told) -> Iterator[Caution]:
    """Two ranks on one GPU."""
    users = _users(plan, lambda rank: [rank.gpu] if rank.gpu else [])
    found: dict[tuple[str, ...], list[_Crowded]] = defaultdict(list)
    for host, by_gpu in users.items():
        crowded = {name: ranks for name, ranks in by_gpu.items() if len(ranks) > 1}
        if crowded:
            found[tuple(crowded)].append(_Crowded(host, crowded, []))
    for hosts in found.values():
        text = f"ranks share GPUs, and with them their SMs: {_crowds(hosts)}"
        fix = "start as many ranks on a host as it has GPUs"
        yield Caution(LOUD, "shared GPU", _everybody(hosts), text, fix)


@dataclass(frozen=True)
class _Crowded:
    """A host, what of it more than one rank uses, and what nobody does."""

    host: str
    users: Mapping[str, Sequence[int]]
    idle: Sequence[str]


def _users(plan: GroupPlan, things: Callable[[RankPlan], Sequence[str]]) -> dict[str, dict[str, list[int]]]:
    """For each host who uses what; hosts where nobody uses anything are left out."""
    users: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank in plan.ranks:
        for name in things(rank):
            users[rank.host][name].append(rank.rank)
    return users


def _crowds(hosts: Sequence[_Crowded]) -> str:
    """The first host's, and on how many it is the same."""
    first = hosts[0]
    shown = ", ".join(f"{name} ({ranks_of(ranks)})" for name, ranks in list(first.users.items())[:_MOST_SHOWN])
    more = f" and {len(first.users) - _MOST_SHOWN} more" if len(first.users) > _MOST_SHOWN else ""
    alike = f", and the same on {len(hosts) - 1} more host(s)" if len(hosts) > 1 else ""
    return f"on {first.host} {shown}{more}{alike}"


def _everybody(hosts: Sequence[_Crowded]) -> tuple[int, ...]:
    return tuple(sorted({rank for host in hosts for ranks in host.users.values() for rank in ranks}))


def far_nics(plan: GroupPlan, told: Told) -> Iterator[Caution]:
    """A NIC on another socket, or nobody knows where."""
    far_words = {Distance.ACROSS_SOCKETS.words, Distance.UNKNOWN.words}
    far = [r for r in plan.ranks if any(n.distance in far_words for n in r.nics) and r.device != "cpu"]
    if far:
        nic = next(n for n in far[0].nics if n.distance in far_words)
        text = f"{ranks_of([r.rank for r in far])}: NICs {nic.distance} ({nic} and {far[0].where})"
        fix = "uccl-ep doctor shows distances; pass the PCIe topology through to virtual machines and containers"
        yield Caution(QUIET, "distance", tuple(r.rank for r in far), text, fix)


def processors(plan: GroupPlan, told: Told) -> Iterator[Caution]:
    """Proxy threads that get in each other's way: the worst host of each kind."""
    hosts: dict[str, list[int]] = defaultdict(list)
    for rank, host in told.machine_of.items():
        hosts[host].append(rank)
    twice = {host: pinned for host, ranks in hosts.items() if (pinned := _pinned_twice(ranks, told))}
    if twice:
        host = max(twice, key=lambda name: len(twice[name]))
        text = (
            f"{ranks_of(hosts[host])} of {host} pin proxy threads to the same CPU(s) {', '.join(map(str, twice[host]))}"
        )
        everybody = tuple(sorted(rank for name in twice for rank in hosts[name]))
        yield Caution(QUIET, "CPUs", everybody, text, "set UCCL_EP_PIN_CPUS for each rank by itself")
    full = {host: share for host, ranks in hosts.items() if (share := _busy(ranks, told)) > 1.0}
    if full:
        host = max(full, key=lambda name: full[name])
        portraits = [told.portraits[rank] for rank in hosts[host]]
        threads = sum(self_description.proxy_threads + 1 for self_description in portraits)
        cpus = min(self_description.num_cpus for self_description in portraits)
        text = f"{host} has {cpus} CPU(s) for {threads} busy threads of its {len(portraits)} rank(s)"
        everybody = tuple(sorted(rank for name in full for rank in hosts[name]))
        several = any(self_description.proxy_threads > 1 for self_description in portraits)
        fix = "use fewer ranks on a host" + (", or UCCL_EP_PROXY_THREADS=1" if several else "")
        yield Caution(QUIET, "CPUs", everybody, text, fix)


def _pinned_twice(ranks: Sequence[int], told: Told) -> list[int]:
    pins = Counter(cpu for rank in ranks for cpu in told.portraits[rank].pin_cpus)
    return sorted(cpu for cpu, number in pins.items() if number > 1)


def _busy(ranks: Sequence[int], told: Told) -> float:
    """Threads that spin, for each CPU they may run on; 0.0: not known."""
    cpus = min(told.portraits[rank].num_cpus for rank in ranks)
    return sum(told.portraits[rank].proxy_threads + 1 for rank in ranks) / cpus if cpus else 0.0


def locked_memory(plan: GroupPlan, told: Told) -> Iterator[Caution]:
    """A limit below what the rank locks."""
    limits = {rank: self_description.locked_bytes for rank, self_description in told.portraits.items()}
    low = [rank for rank, limit in limits.items() if limit != UNLIMITED and limit < plan.locked_bytes]
    if low:
        text = (
            f"{ranks_of(low)} may lock {format_bytes(limits[low[0]])} of memory, and each needs "
            f"{format_bytes(plan.locked_bytes)} (root's processes may be exempt)"
        )
        yield Caution(QUIET, "limits", tuple(low), text, "ulimit -l unlimited; docker run --ulimit memlock=-1:-1")


def refusals(plan: GroupPlan, told: Told) -> Iterator[Caution]:
    """Ranks that could not start."""
    for rank in plan.ranks:
        for choice in rank.choices:
            if choice.chosen == "refused":
                text = f"rank {rank.rank} ({rank.host}): {choice.why}"
                yield Caution(
                    ERROR, "refused", (rank.rank,), text, "do what the message says; the job would end with it"
                )


LOUD_RULES: tuple[Rule, ...] = (network_fallback, memory_fallback, differing_settings, shared_nics, shared_gpus)
RULES: tuple[Rule, ...] = (
    refusals,
    *LOUD_RULES,
    differing_networks,
    far_nics,
    processors,
    locked_memory,
)
