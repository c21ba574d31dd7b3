"""The rank's side: writes its page once it is ready, and takes it away when it ends. Costs nothing in between."""

from __future__ import annotations

import contextlib
import logging
import os
import time
import warnings
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import uccl_ep
from uccl_ep import _native
from uccl_ep.observe.job import job_id
from uccl_ep.observe.page import PAGE_SUFFIX, Location, Page, pack
from uccl_ep.recorder.durations import Durations
from uccl_ep.system.private import make_folder, write_file

if TYPE_CHECKING:
    from uccl_ep.session.session import Session


_log = logging.getLogger("uccl_ep")


class Published:
    """A page that can be read for as long as this object lives.

    Attributes:
        page: what it says. path: its file in UCCL_EP_OBSERVE_DIR; None: there is none.
        unserved: where its metrics could not be served, since the port is taken: (port, address); None: nowhere.
    """

    def __init__(self, page: Page, directory: str = "") -> None:
        self.page = page
        self.unserved: tuple[int, str] | None = None
        magic, rest = pack(page)
        self._segment = _native.Segment.create(f"uccl-ep-{page.rank}{PAGE_SUFFIX}", len(magic) + len(rest))
        view = self._segment.numpy()
        view[len(magic) : len(magic) + len(rest)] = np.frombuffer(rest, dtype=np.uint8)
        view[: len(magic)] = np.frombuffer(magic, dtype=np.uint8)  # last: from here on it is a page
        self.path = _write_file(Path(directory), page, magic + rest) if directory else None
        if self.path is not None:  # also when the interpreter ends without a close
            weakref.finalize(self, _remove, self.path, os.getpid())

    def serve(self, port: int, address: str) -> None:
        """Serves the metrics of the page's job until the page goes.

        Raises:
            OSError: the port is taken; `unserved` says so, for serve_again(). NotSupported: as serve_metrics.
        """
        from uccl_ep.observe.metrics import serve_metrics

        self.unserved = None
        try:
            server = serve_metrics(port, address, job_id=self.page.job_id)
        except OSError:
            self.unserved = port, address
            raise
        weakref.finalize(self, server.close)

    def serve_again(self) -> bool:
        """Tries once more where the port was taken; whether nothing is left to try."""
        if (where := self.unserved) is not None:
            with contextlib.suppress(OSError):
                self.serve(*where)
                _log.info("rank %d: metrics are served on port %d now", self.page.rank, where[0])
        return self.unserved is None


def publish(session: Session) -> Published:
    """Makes a rank that is ready visible from outside. What does not work here is a warning: the job goes on."""
    s = session.settings
    session.recorder.calls.durations = Durations(session.rank)
    try:
        published = Published(_page_of(session), s.observe_dir)
    except OSError as error:
        warnings.warn(f"UCCL_EP_OBSERVE_DIR={s.observe_dir}: {error}; no file is left there", stacklevel=2)
        published = Published(_page_of(session))
    if s.metrics_port and _speaks_for_its_host(session):
        try:
            published.serve(s.metrics_port, s.interface or "127.0.0.1")
        except (OSError, uccl_ep.NotSupported) as error:
            warnings.warn(f"UCCL_EP_METRICS_PORT={s.metrics_port}: {error}; no metrics are served", stacklevel=2)
    return published


def _speaks_for_its_host(session: Session) -> bool:
    hosts = session.hosts
    return session.rank == min(r for r, h in enumerate(hosts) if h == hosts[session.rank] and r not in session.absent)


def _page_of(session: Session) -> Page:
    s, regions, hellos = session.settings, session.regions, session.hellos
    present = [rank for rank in range(session.num_ranks) if rank not in session.absent]
    names = list(dict.fromkeys(session.hostnames))
    index = {name: i for i, name in enumerate(names)}
    segments = {name: _locate(segment) for name, segment in regions.shared().items()}
    if session.recorder.calls.durations is not None:
        segments["durations"] = _locate(session.recorder.calls.durations.segment)
    return Page(
        rank=session.rank,
        num_ranks=session.num_ranks,
        session=hellos[present[0]].session,
        pid=os.getpid(),
        proxy_pid=regions.proxy_pid,
        library=uccl_ep.__version__,
        host_names=names,
        machine_of=[index[name] for name in session.hostnames],
        pids=[i.pid for i in hellos],
        node_of=list(session.topology.without(()).node_of),
        apart=session.topology.apart,
        host_of=list(session.topology.host_of),
        device=hellos[session.rank].device,
        family=session.family,
        placement=session.placement.where,
        proxy_threads=s.proxy_threads,
        num_rings=regions.num_rings,
        ring_capacity=s.ring_capacity,
        max_in_flight=s.max_in_flight,
        max_in_flight_bytes=s.max_in_flight_bytes,
        num_channels=session.plan.num_channels,
        started_ns=time.monotonic_ns(),
        segments=segments,
        absent=sorted(session.absent),
        job_id=job_id(s.job_id, len({i.process for i in hellos}) == 1, os.environ),
    )


def _locate(segment: _native.Segment) -> Location:
    return Location(segment.fd, os.fstat(segment.fd).st_ino, segment.bytes)


def _write_file(directory: Path, page: Page, data: bytes) -> Path:
    """Whole or not at all: readers may look at any moment."""
    make_folder(directory)
    path = directory / f"uccl-ep-{page.job}-{page.rank}.page"
    write_file(path, data)
    return path


def _remove(path: Path, pid: int) -> None:
    if os.getpid() == pid:  # a forked child has the object too
        path.unlink(missing_ok=True)
