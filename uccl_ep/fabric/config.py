"""What the native side is told of NICs, as plain data: it crosses into a proxy process as msgpack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from uccl_ep import _native

_COPIED = (
    "provider queue_pairs service_level traffic_class hop_limit mtu udp_source_port timeout retries relaxed_ordering "
    "flush_by_read"
)


@dataclass(frozen=True)
class FabricConfig:
    """See proxy/transport/fabric.h. `nics`: (device, port, GID index or -1 for the LID), nearest first."""

    nics: tuple[tuple[str, int, int], ...] = ()
    provider: str = ""
    queue_pairs: int = 1
    service_level: int = 0
    traffic_class: int = 0
    hop_limit: int = 64
    mtu: int = 0
    udp_source_port: int = 0
    timeout: int = 20
    retries: int = 7
    relaxed_ordering: bool = True
    flush_by_read: bool = False

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> FabricConfig:
        """Back from asdict() and msgpack, which has no tuples."""
        nics = tuple((str(device), int(port), int(gid)) for device, port, gid in values["nics"])
        return cls(**{**values, "nics": nics})

    def to_native(self) -> _native.FabricSettings:
        """For ProxySettings.fabric."""
        settings = _native.FabricSettings()
        nics = []
        for device, port, gid_index in self.nics:
            nic = _native.NicSettings()
            nic.device, nic.port, nic.gid_index = device, port, gid_index
            nics.append(nic)
        settings.nics = nics
        for name in _COPIED.split():
            setattr(settings, name, getattr(self, name))
        return settings
