"""A rank's flight recorder: the proxy's event rings and the calls, and when they are written down.

The rings are in the rank's journal, a file in memory that whatever runs the proxy maps: they outlive a proxy that dies,
and the rank. Always on, unless UCCL_EP_FLIGHT_RECORDER=off; the rings take DEPTH events a proxy thread, with
UCCL_EP_TRACE TRACED_DEPTH.
"""

from __future__ import annotations

import functools
import os
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uccl_ep import _native
from uccl_ep.errors import UcclEpError, attach
from uccl_ep.recorder.calls import CallLog
from uccl_ep.recorder.collect import collect
from uccl_ep.recorder.find import OFF, named_folder, usual_folder
from uccl_ep.recorder.journal import RUNNING, Journal
from uccl_ep.recorder.record import SUFFIX, WorkerEvents, write
from uccl_ep.settings import Settings
from uccl_ep.system.private import temporary_folder, why_not_private

if TYPE_CHECKING:
    from uccl_ep.session.session import Session

DEPTH, TRACED_DEPTH = 1 << 12, 1 << 16
"""Events of 32 bytes that each proxy thread's ring holds; powers of two."""
KEPT = 256
"""Records that the default folder keeps."""


class FlightRecorder:
    """Of one rank in one life of its Buffer.

    Args:
        nvtx: mark calls for NVIDIA's tools.

    Attributes:
        calls: those of the Buffer.
    """

    def __init__(self, rank: int, settings: Settings, nvtx: bool = False) -> None:
        self.calls = CallLog(nvtx)
        self._rank, self._settings = rank, settings
        self._events: _native.Segment | None = None
        self._journal: Journal | None = None
        self._path = ""  # of the record of this life's fault
        self._trouble = ""  # why there is none

    @property
    def enabled(self) -> bool:
        """Whether anything is recorded."""
        return self._settings.flight_recorder != OFF or bool(self._settings.trace)

    def proxy_settings(self) -> dict[str, Any]:
        """Makes the rings; what a ProxyConfig is told of them."""
        if not self.enabled:
            return {}
        traced = bool(self._settings.trace)
        self._depth = TRACED_DEPTH if traced else DEPTH
        num_bytes = _native.events_bytes(self._settings.proxy_threads, self._depth)
        try:
            self._journal = self.calls.journal = Journal(self._rank, num_bytes)
            self._events = self._journal.segment
        except OSError as error:
            _warn_once(f"{error}: a rank that is killed will leave no flight record")
            self._events = _native.Segment.create(f"uccl-ep-{self._rank}-events", num_bytes)
        return {"events_fd": self._events.fd, "event_capacity": self._depth, "trace": traced}

    def complete(self, session: Session) -> None:
        """The rank is ready: from here on its journal tells who it is, whatever ends it."""
        if self._journal is None:
            return
        try:
            self._journal.complete(collect(session, [], [], RUNNING), usual_folder(self._settings))
        except OSError as error:
            _warn_once(f"{error}: a rank that is killed will leave no flight record")
            self._drop_journal()

    def workers(self) -> list[WorkerEvents]:
        """What the proxy's workers have recorded so far."""
        if self._events is None:
            return []
        workers = range(self._settings.proxy_threads)
        return [WorkerEvents(*_native.read_events(self._events.address, self._depth, w)) for w in workers]

    def dump(self, session: Session, folder: Path | None, reason: str, error: UcclEpError | None = None) -> Path:
        """Writes the rank's record; returns its path.

        Args:
            folder: where; None: UCCL_EP_FLIGHT_RECORDER, UCCL_EP_TRACE, or this user's default folder.

        Raises:
            OSError: it cannot be written.
        """
        record = collect(session, list(self.calls.calls), self.workers(), reason)
        if error is not None:
            record.error = f"{type(error).__name__}: {error}"
            record.blamed = -1 if (peer := getattr(error, "peer", None)) is None else peer
        return write(record, self._folder() if folder is None else folder)

    def _folder(self) -> Path:
        return named_folder(self._settings) or default_folder()

    def noted(self, session: Session, error: UcclEpError) -> UcclEpError:
        """The error of the rank's fault, with a note of where the rank's record is; the first one writes it."""
        if not self.enabled:
            return error
        if not self._path and not self._trouble:
            try:
                self._path = str(self.dump(session, None, f"a call raised {type(error).__name__}", error))
                self._drop_journal()  # the record has it all
            except Exception as trouble:  # what is being raised matters more than whatever goes wrong here
                self._trouble = f"{type(trouble).__name__}: {trouble}"
        error.flight_record = self._path
        attach(error, _told(self._path, self._trouble))
        return error

    def close(self, session: Session) -> None:
        """With UCCL_EP_TRACE leaves the record; then drops the rings and the durations. Never raises; idempotent."""
        if self._settings.trace and self._events is not None and "context" in session.__dict__:
            with suppress(Exception):  # the Buffer ends either way; what is missing is seen by who wants the trace
                self.dump(session, Path(self._settings.trace), "the end of the Buffer, with UCCL_EP_TRACE")
        self._drop_journal()
        self._events = self.calls.durations = None

    def _drop_journal(self) -> None:
        if self._journal is not None:
            self._journal.remove()
        self._journal = self.calls.journal = None


@functools.cache
def _warn_once(text: str) -> None:
    warnings.warn(text, stacklevel=2)


def _told(path: str, trouble: str) -> str:
    if trouble:
        return f"(this rank's flight record could not be written: {trouble})"
    told = f"This rank's flight record: {path}\nWith those of the other ranks: uccl-ep explain {os.path.dirname(path)}"
    shared = why_not_private(Path(path).parent)
    return f"{told}\nNot every record there need be of this job: {shared}" if shared else told


def default_folder() -> Path:
    """This user's folder for records in the temporary one, with room for one more.

    Raises:
        OSError: there is something else in its place: another user's, a link, or one that others can write to.
    """
    try:
        folder = temporary_folder()
    except OSError as error:
        raise OSError(f"{error}; UCCL_EP_FLIGHT_RECORDER names another place") from error
    prune(folder, KEPT - 1)
    return folder


def prune(folder: Path, keep: int) -> None:
    """Removes all but the newest records. Other ranks may do so at the same moment."""
    with os.scandir(folder) as found:  # at every start, and there may be hundreds of them: no Path for each
        files = [file for file in found if file.name.endswith(SUFFIX)]
    aged: list[tuple[float, str]] = []
    for file in files if len(files) > keep else ():
        with suppress(OSError):
            aged.append((file.stat().st_mtime, file.path))
    for _, path in sorted(aged)[: max(0, len(aged) - keep)]:
        with suppress(OSError):
            os.unlink(path)
