"""A barrier of all ranks of a Buffer, on its stream."""

from __future__ import annotations

from uccl_ep import _native
from uccl_ep.device.protocol import Device
from uccl_ep.session.session import Session


class Collective:
    """Numbered barriers; every rank makes the same calls.

    Attributes:
        round: of the last one.
    """

    def __init__(self, session: Session, device: Device) -> None:
        self._session, self._device = session, device
        self.round = 0

    def barrier(self) -> None:
        """Returns when all ranks have come and everything they sent before is delivered. Collective.

        Raises:
            PeerTimeout, PeerLost: a rank did not come.
        """
        self._device.begin()
        self._device.check_host_wait()
        self.round += 1
        self._device.launch(_native.barrier_launch(self._session.context, self.round))
        self._device.finish()
