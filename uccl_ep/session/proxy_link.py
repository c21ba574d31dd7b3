"""A rank's end of its proxy, wherever the proxy runs: as threads of this process, or as a process beside it."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import msgpack

from uccl_ep import _native
from uccl_ep.errors import TransportError
from uccl_ep.fabric.config import FabricConfig
from uccl_ep.system.os_limits import naming
from uccl_ep.system.own_python import run_module

CONNECT_TIMEOUT_S = 60.0
Device = tuple[int, int, list[int]]
_ANSWER_S = 3.0  # what a proxy process may take to answer, beyond what it was asked to do


@dataclass(frozen=True)
class ProxyConfig:
    """Everything a proxy is started with: plain data, so that it can cross a process border.

    Descriptors are the starting process's; a proxy process inherits them under the same numbers.
    """

    rank: int
    num_ranks: int
    num_workers: int
    spans: list[tuple[int, int, int]]  # offset, bytes, fd
    control_offset: int
    num_channels: int
    rings_fd: int
    num_rings: int
    ring_capacity: int
    counters_fd: int
    family: str
    session: int
    secret: bytes
    interface: str
    max_in_flight: int
    max_in_flight_bytes: int
    shuffle_seed: int
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    max_in_flight_bytes_all: int = 0
    near_cpus: list[int] = field(default_factory=list)  # of the NICs; where `cpus` do not pin
    nap_when_idle: bool = True  # see session/proxy_idle.py
    cpus: list[int] = field(default_factory=list)
    losses_are_absences: bool = False  # enable_shrink: a lost peer is masked, no fault
    fabric: FabricConfig = FabricConfig()
    events_fd: int = -1  # the flight recorder's rings; -1: nothing is recorded
    event_capacity: int = 0  # events that each of them holds
    trace: bool = False  # record every command
    devices: list[Device] = field(default_factory=list)  # spans in a GPU: offset, address, dma-bufs (fabric.h)
    late_span: int = -1  # index of the span that NICs register when it is used; -1: none
    unreached: list[int] = field(default_factory=list)  # ranks that connect() has no address of
    flush_call: list[int] = field(default_factory=list)  # see Driver.flush_call; empty: nothing of the GPU's is called

    def descriptors(self) -> list[int]:
        """All file descriptors named here."""
        named = [*(fd for _, _, fd in self.spans), self.rings_fd, self.counters_fd, self.events_fd]
        return [fd for fd in (*named, *(fd for _, _, dmabufs in self.devices for fd in dmabufs)) if fd >= 0]

    @classmethod
    def from_plain(cls, values: dict[str, Any]) -> ProxyConfig:
        """Back from asdict() and msgpack, which has no tuples and no classes."""
        tuples = {name: [tuple(item) for item in values[name]] for name in ("spans", "devices")}
        return cls(**{**values, **tuples, "fabric": FabricConfig.from_plain(values["fabric"])})


def make_proxy(config: ProxyConfig) -> _native.Proxy:
    """The native proxy for this config, in this process."""
    s = _native.ProxySettings()
    spans = []
    for offset, num_bytes, fd in config.spans:
        span = _native.SpanSettings()
        span.offset, span.bytes, span.fd = offset, num_bytes, fd
        for _, address, dmabuf_fds in [device for device in config.devices if device[0] == offset]:
            span.address, span.dmabuf_fds = address, list(dmabuf_fds)
        spans.append(span)
    s.spans = spans
    s.fabric = config.fabric.to_native()
    if config.flush_call:
        s.flush_call, s.context_call, s.context = config.flush_call
    s.interface_address = config.interface
    s.connect_timeout_ns = int(config.connect_timeout_s * 1e9)
    for name in (
        "rank num_ranks num_workers control_offset num_channels rings_fd num_rings ring_capacity counters_fd family "
        "session secret max_in_flight max_in_flight_bytes max_in_flight_bytes_all shuffle_seed nap_when_idle "
        "cpus near_cpus losses_are_absences events_fd event_capacity trace late_span unreached"
    ).split():
        setattr(s, name, getattr(config, name))
    return _native.Proxy(s)


class ProxyLink(Protocol):
    """What a session asks of its proxy."""

    def local_address(self) -> bytes: ...

    def connect(self, addresses: Sequence[bytes], peer_bytes: Sequence[int], peer_pids: Sequence[int]) -> None: ...

    def start(self) -> None: ...

    def stop(self, drain_s: float) -> None: ...

    def dismiss_peer(self, peer: int) -> None: ...

    def admit(self, num_bytes: int, address: int, dmabufs: Sequence[int]) -> None:
        """Registers the first bytes of the late span with the NICs, while the proxy works.

        Args:
            address, dmabufs: of a GPU's memory, which what is new of those bytes is; 0 and none: of the span's own.
        """

    def notes(self) -> list[tuple[str, str]]:
        """(choice, why) of what the transport chose at run time; complete once it is connected."""

    def queue_pairs(self) -> list[dict[str, int]]:
        """What each queue pair has carried; empty where that is not known."""

    @property
    def pid(self) -> int:
        """Process that the proxy's workers run in."""


class ThreadProxy:
    """The proxy's workers are threads of this process."""

    def __init__(self, config: ProxyConfig) -> None:
        self._proxy = make_proxy(config)

    def local_address(self) -> bytes:
        return self._proxy.local_address()

    def connect(self, addresses: Sequence[bytes], peer_bytes: Sequence[int], peer_pids: Sequence[int]) -> None:
        try:
            self._proxy.connect(list(addresses), list(peer_bytes), list(peer_pids))
        except RuntimeError as error:
            raise TransportError(str(error)) from error

    def start(self) -> None:
        self._proxy.start()

    def stop(self, drain_s: float) -> None:
        self._proxy.stop(int(drain_s * 1e9))

    def dismiss_peer(self, peer: int) -> None:
        self._proxy.dismiss_peer(peer)

    def admit(self, num_bytes: int, address: int, dmabufs: Sequence[int]) -> None:
        try:
            self._proxy.admit(num_bytes, address, list(dmabufs))
        except RuntimeError as error:
            raise TransportError(str(error)) from error

    def notes(self) -> list[tuple[str, str]]:
        return self._proxy.notes()

    def queue_pairs(self) -> list[dict[str, int]]:
        return self._proxy.queue_pairs()

    @property
    def pid(self) -> int:
        """This process."""
        return os.getpid()


class ProcessProxy:
    """The proxy is a process of its own, started here, ended with this process whatever ends it.

    Requests and answers are length-prefixed msgpack maps on its standard input and output.
    """

    def __init__(self, config: ProxyConfig) -> None:
        with naming("the start of the proxy process, and pipes to it"):
            self._channel, theirs = socket.socketpair()  # for descriptors that come later
            self._process = subprocess.Popen(
                run_module("uccl_ep.session.proxy_process", str(os.getpid())),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[*config.descriptors(), theirs.fileno()],
            )
        self._limit_s = config.connect_timeout_s + CONNECT_TIMEOUT_S  # a process may take long to start
        try:
            foreign = [(offset, 0, dmabufs) for offset, _, dmabufs in config.devices]  # addresses are this process's
            plain = asdict(replace(config, devices=foreign))
            self._request("configure", self._limit_s, config=plain, channel=theirs.fileno())
        except TransportError:
            self.stop(0.0)  # nobody else knows of the process
            raise
        finally:
            theirs.close()

    def _request(self, operation: str, limit_s: float, **arguments: Any) -> Any:
        """What the proxy answers. A process that is stopped would never do so, hence the limit in seconds."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        try:
            body = msgpack.packb({"operation": operation, **arguments}, use_bin_type=True)
            stdin.write(len(body).to_bytes(4, "little") + body)
            stdin.flush()
            answer = read_message(_Answers(stdout.fileno(), time.monotonic() + limit_s))
        except TimeoutError as error:
            self._process.kill()  # a late answer would be taken for that of another request
            raise TransportError(
                f"the proxy process (pid {self._process.pid}) has not answered {operation!r} within {limit_s:.0f} s"
            ) from error
        except (OSError, EOFError) as error:
            code = self._process.poll()
            raise TransportError(f"the proxy process (pid {self._process.pid}, exit code {code}) is gone") from error
        if answer.get("error"):
            raise TransportError(str(answer["error"]))
        return answer.get("value")

    def local_address(self) -> bytes:
        address: bytes = self._request("local_address", self._limit_s)
        return address

    def connect(self, addresses: Sequence[bytes], peer_bytes: Sequence[int], peer_pids: Sequence[int]) -> None:
        arguments = {"addresses": list(addresses), "peer_bytes": list(peer_bytes), "peer_pids": list(peer_pids)}
        self._request("connect", self._limit_s, **arguments)

    def start(self) -> None:
        self._request("start", self._limit_s)

    def stop(self, drain_s: float) -> None:
        if self._process.poll() is None:
            try:
                self._request("stop", drain_s + _ANSWER_S, drain_s=drain_s)
            except TransportError:
                pass  # it ended on its own, or was ended for its silence; waiting below collects it
        for stream in (self._process.stdin, self._process.stdout, self._channel):
            if stream is not None:
                with contextlib.suppress(OSError):  # what an ended process did not read cannot be written any more
                    stream.close()
        try:
            self._process.wait(drain_s + 5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def dismiss_peer(self, peer: int) -> None:
        self._request("dismiss_peer", self._limit_s, peer=peer)

    def admit(self, num_bytes: int, address: int, dmabufs: Sequence[int]) -> None:
        if dmabufs:
            with contextlib.suppress(OSError):  # a process that is gone, which the request says
                socket.send_fds(self._channel, [b"."], dmabufs)
        self._request("admit", self._limit_s, num_bytes=num_bytes, num_dmabufs=len(dmabufs))

    def notes(self) -> list[tuple[str, str]]:
        return [(choice, reason) for choice, reason in self._request("notes", self._limit_s)]

    def queue_pairs(self) -> list[dict[str, int]]:
        """Never known: counters are read when something hangs, and then the process may not answer."""
        return []

    @property
    def pid(self) -> int:
        """Process id of the proxy."""
        return self._process.pid


class _Answers:
    """Reads of a pipe that end at a deadline (time.monotonic)."""

    def __init__(self, fd: int, deadline: float) -> None:
        self._fd, self._deadline = fd, deadline

    def read(self, size: int) -> bytes:
        """`size` bytes, or fewer where the pipe ends.

        Raises:
            TimeoutError: they have not come by the deadline.
        """
        data = b""
        while len(data) < size:
            left = self._deadline - time.monotonic()
            if not select.select([self._fd], [], [], max(0.0, left))[0]:
                raise TimeoutError("no answer")
            more = os.read(self._fd, size - len(data))
            if not more:
                break
            data += more
        return data


def read_message(stream: Any) -> dict[str, Any]:
    """One length-prefixed msgpack map.

    Raises:
        EOFError: the other side closed the stream.
    """
    header = stream.read(4)
    if len(header) < 4:
        raise EOFError("closed")
    body = stream.read(int.from_bytes(header, "little"))
    message = msgpack.unpackb(body, raw=False)
    if not isinstance(message, dict):
        raise EOFError("not a message")
    return message
