"""What a cluster has set for others (UCCL, NCCL, NVSHMEM): defaults under our own variables, which always win.

A value is translated into the text that our own variable takes. One that cannot be honoured is said aloud. Whoever
reads a setting finds its origin in `Settings.site`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

_GPUS_OF_A_HOST = 8  # that NVLink joins at the most
_MAPPING = "NVSHMEM_ENABLE_NIC_PE_MAPPING"  # without it NVSHMEM does not look at its list


@dataclass(frozen=True)
class SiteValue:
    """A setting that another library's variable gives.

    Attributes:
        field: of Settings. variable, text: where it comes from, as it is set there.
        reading: the same as text for our own variable; of `interface`, as it is set.
    """

    field: str
    variable: str
    text: str
    reading: str

    @property
    def words(self) -> str:
        """`NCCL_IB_TC=106`, for reasons."""
        return f"{self.variable}={self.text}"

    @property
    def of_uccl(self) -> bool:
        """Of a library that reads it on EFA too. NCCL and NVSHMEM reach EFA through libfabric, without all these."""
        return self.variable.startswith("UCCL_")


def _hcas(text: str) -> str:
    """NCCL's list, `^` to leave out and `=` for whole names in front of all of it, as UCCL_EP_NICS."""
    out = text.startswith("^")
    exact = text[out:].startswith("=")
    names = [name.strip() for name in text[out + exact :].split(",") if name.strip()]
    parts = [name.partition(":") for name in names]
    return ",".join(f"{'^' * out}{name}{'' if exact else '*'}{colon}{port}" for name, colon, port in parts)


def _number(text: str) -> str:
    """A whole number, also hexadecimal; negative: not set."""
    value = int(text, 0)
    return "" if value < 0 else str(value)


def _forbids(what: str) -> Callable[[str], str]:
    """The value that forbids nodes of several hosts; all others leave it open."""
    return lambda text: "0" if text == what else ""


_NUMBERS = {
    "gid_index": "UCCL_IB_GID_INDEX NCCL_IB_GID_INDEX NVSHMEM_IB_GID_INDEX",
    "traffic_class": "UCCL_IB_TC NCCL_IB_TC NVSHMEM_IB_TRAFFIC_CLASS",
    "service_level": "UCCL_IB_SL NCCL_IB_SL NVSHMEM_IB_SL",
    "ib_timeout": "NCCL_IB_TIMEOUT NVSHMEM_IB_TIMEOUT",
    "ib_retry_cnt": "NCCL_IB_RETRY_CNT NVSHMEM_IB_RETRY_CNT",
}
READ: tuple[tuple[str, str, Callable[[str], str]], ...] = (
    *(("nics", name, _hcas) for name in ("UCCL_IB_HCA", "NCCL_IB_HCA")),
    ("nics", "NVSHMEM_HCA_LIST", lambda text: text),
    *((field, name, _number) for field, names in _NUMBERS.items() for name in names.split()),
    ("mnnvl", "NCCL_MNNVL_ENABLE", _forbids("0")),
    ("mnnvl", "NVSHMEM_DISABLE_MNNVL", _forbids("1")),
    # Of DeepEP's hybrid buffer, in this order.
    ("mnnvl", "USE_MNNVL", lambda text: {"0": "auto", "1": "1"}.get(text, "")),
    ("mnnvl", "NVLINK_DOMAIN_SIZE", lambda text: "1" if int(text) > _GPUS_OF_A_HOST else ""),
    *(
        ("interface", name, lambda text: text)
        for name in ("UCCL_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME")
    ),
)
"""(field, variable, its text as our variable's), the first that is set of each field."""

_SCALED = "counts for a NIC or a queue there; UCCL_EP_{} counts for each peer"
NOT_READ: tuple[tuple[str, tuple[str, ...], str, str], ...] = (
    ("UCCL_IB_MAX_INFLIGHT_NORMAL", (), _SCALED.format("MAX_IN_FLIGHT"), "max_in_flight"),
    ("UCCL_IB_MAX_INFLIGHT_LOW_LATENCY", (), _SCALED.format("MAX_IN_FLIGHT"), "max_in_flight"),
    (
        "UCCL_IB_MAX_INFLIGHT_BYTES",
        (),
        "counts for a NIC there; UCCL_EP_MAX_IN_FLIGHT_BYTES_ALL counts for a rank, whatever its NICs",
        "max_in_flight_bytes_all",
    ),
    ("NCCL_IB_DISABLE", ("0",), "UCCL_EP_TRANSPORT=tcp keeps Buffers from NICs", "transport"),
    ("NCCL_IB_PKEY", ("0",), "the partition key at index 0 of a port is what is used here", ""),
    ("NVSHMEM_HCA_PE_MAPPING", (), "UCCL_EP_NICS names NICs, and ranks share them by distance", "nics"),
    *(
        (f"{library}_IB_{name}", honoured, "UCCL_EP_GID_INDEX names an entry of the table", "gid_index")
        for library in ("UCCL", "NCCL", "NVSHMEM")
        for name, honoured in (("ROCE_VERSION_NUM", ("2",)), ("ADDR_FAMILY", ("AF_INET",)), ("ADDR_RANGE", ()))
    ),
)
"""(variable, values that change nothing here, what to know instead, the field that makes it needless if it is set)."""


def read_site(
    environment: Mapping[str, str], own: Collection[str], check: Callable[[str, str], str]
) -> tuple[list[SiteValue], list[str]]:
    """(what others' variables say, what has to be said aloud of the rest).

    Args:
        own: fields that our own variables have set; others are not asked for these.
        check: (field, text) what our own variable allows where it refuses the text; empty: it takes it.
    """
    found: dict[str, SiteValue] = {}
    aloud = []
    for field, name, read in READ:
        text = environment.get(name, "").strip()
        if not text or field in own or field in found:
            continue
        if name == "NVSHMEM_HCA_LIST" and environment.get(_MAPPING, "0").strip() in ("", "0"):
            aloud.append(f"{name}={text} is ignored, as NVSHMEM ignores it without {_MAPPING}=1")
            continue
        try:
            reading = read(text)
            allowed = "" if field == "interface" or not reading else check(field, reading)
        except ValueError:
            reading, allowed = text, "a whole number"
        if allowed:
            ours = f"UCCL_EP_{field.upper()}"
            aloud.append(f"{name}={text} is ignored: {ours} takes its place here, which allows {allowed}. Set that")
        elif reading:
            found[field] = SiteValue(field, name, text, reading)
    for name, honoured, instead, field in NOT_READ:
        text = environment.get(name, "").strip()
        if text and text not in honoured and field not in own and not (field == "gid_index" and field in found):
            aloud.append(f"{name}={text} is not read: {instead}")
    return list(found.values()), aloud


def address_by_names(wanted: str, addresses: Mapping[str, Sequence[str]], default: str) -> str:
    """The address of the interface that a *_SOCKET_IFNAME names; empty: of none here.

    Args:
        wanted: names by their beginning; `^` to leave out and `=` for whole names in front of all of it.
        addresses: of each interface of this host, with prefix lengths.
        default: of the default route; kept where its interface may be used.
    """
    out = wanted.startswith("^")
    exact = wanted[out:].startswith("=")
    names = [name.strip().partition(":")[0] for name in wanted[out + exact :].split(",") if name.strip()]

    def named(interface: str) -> bool:
        return any(interface == name if exact else interface.startswith(name) for name in names)

    allowed = [ipaddress.ip_interface(a).ip for i, some in addresses.items() if named(i) != out for a in some]
    loopback_named = not out and any("lo".startswith(name) for name in names)
    good = [a for a in allowed if not a.is_link_local and (loopback_named or not a.is_loopback)]
    if any(str(a) == default for a in good):
        return default
    return str(min(good, key=lambda a: a.version)) if good else ""  # IPv4 first, then in the host's order
