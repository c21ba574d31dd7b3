"""A rank's end of its proxy, wherever the proxy runs: as threads of this process, or as a process beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import msgpack

from uccl_ep import _native
from uccl_ep.errors import TransportError

CONNECT_TIMEOUT_S = 60.0


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
    cpus: list[int] = field(default_factory=list)

    def descriptors(self) -> list[int]:
        """All file descriptors named here."""
        return [*(fd for _, _, fd in self.spans), self.rings_fd, self.counters_fd]


def make_proxy(config: ProxyConfig) -> _native.Proxy:
    """The native proxy for this config, in this process."""
    s = _native.ProxySettings()
    spans = []
    for offset, num_bytes, fd in config.spans:
        span = _native.SpanSettings()
        span.offset, span.bytes, span.fd = offset, num_bytes, fd
        spans.append(span)
    s.spans = spans
    s.interface_address = config.interface
    s.connect_timeout_ns = int(CONNECT_TIMEOUT_S * 1e9)
    for name in (
        "rank num_ranks num_workers control_offset num_channels rings_fd num_rings ring_capacity counters_fd family "
        "session secret max_in_flight max_in_flight_bytes shuffle_seed cpus"
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

    @property
    def pid(self) -> int:
        """This process."""
        return os.getpid()


class ProcessProxy:
    """The proxy is a process of its own, started here, ended with this process whatever ends it.

    Requests and answers are length-prefixed msgpack maps on its standard input and output.
    """

    def __init__(self, config: ProxyConfig) -> None:
        package_root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        path = os.pathsep.join([package_root, *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "uccl_ep.proxy_process", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=config.descriptors(),
            env={**os.environ, "PYTHONPATH": path},
        )
        try:
            self._request("configure", config=asdict(config))
        except TransportError:
            self.stop(0.0)  # nobody else knows of the process
            raise

    def _request(self, operation: str, **arguments: Any) -> Any:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        try:
            body = msgpack.packb({"operation": operation, **arguments}, use_bin_type=True)
            stdin.write(len(body).to_bytes(4, "little") + body)
            stdin.flush()
            answer = read_message(stdout)
        except (OSError, EOFError) as error:
            code = self._process.poll()
            raise TransportError(f"the proxy process (pid {self._process.pid}, exit code {code}) is gone") from error
        if answer.get("error"):
            raise TransportError(str(answer["error"]))
        return answer.get("value")

    def local_address(self) -> bytes:
        address: bytes = self._request("local_address")
        return address

    def connect(self, addresses: Sequence[bytes], peer_bytes: Sequence[int], peer_pids: Sequence[int]) -> None:
        self._request("connect", addresses=list(addresses), peer_bytes=list(peer_bytes), peer_pids=list(peer_pids))

    def start(self) -> None:
        self._request("start")

    def stop(self, drain_s: float) -> None:
        if self._process.poll() is None:
            try:
                self._request("stop", drain_s=drain_s)
            except TransportError:
                pass  # it ended on its own; waiting below collects it
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        try:
            self._process.wait(drain_s + 5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def dismiss_peer(self, peer: int) -> None:
        self._request("dismiss_peer", peer=peer)

    @property
    def pid(self) -> int:
        """Process id of the proxy."""
        return self._process.pid


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
