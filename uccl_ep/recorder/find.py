"""Records of a job, wherever its ranks left them: files that they wrote, and journals of those that could not."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from uccl_ep.errors import InvalidArgument
from uccl_ep.recorder.journal import FOLDER, RUNNING, journals, read_journal
from uccl_ep.recorder.journal import SUFFIX as JOURNAL
from uccl_ep.recorder.record import SUFFIX, Record, printable, read
from uccl_ep.settings import Settings
from uccl_ep.system.private import temporary_place

OFF = "off"
_Found = list[tuple[Path, Record]]


def named_folder(settings: Settings) -> Path | None:
    """Where the settings have records; None: they name no folder."""
    named = settings.flight_recorder if settings.flight_recorder != OFF else ""
    return Path(named or settings.trace) if named or settings.trace else None


def usual_folder(settings: Settings) -> Path:
    """Where ranks with these settings leave their records; makes nothing."""
    return named_folder(settings) or temporary_place()


def read_all(places: Iterable[Path]) -> list[Record]:
    """The records of one job, ascending by rank: what is in the places, and this host's journals of the same job.

    Of several jobs the one that was written to last is taken, and one whose ranks are all running only where there is
    no other. What lies beside records and is none is said on stderr, by its name and why.

    Args:
        places: records and journals, or folders of them. A job that was told to leave its records in one of them
            (UCCL_EP_FLIGHT_RECORDER, UCCL_EP_TRACE) counts, also where all that it has left is journals.

    Raises:
        InvalidArgument: there is none.
    """
    places = list(places)
    written: _Found = []
    for file in (file for place in places for file in _files(place)):
        try:
            written.append((file, read_journal(file) if file.name.endswith(JOURNAL) else read(file)))
        except InvalidArgument as error:
            _skip(str(error))
    kept = _journals()
    sessions = {record.session for _, record in written}
    kept = [(path, r) for path, r in kept if r.session in sessions or _meant_for(r, places)]
    found = [*kept, *written]
    if not found:
        shown = ", ".join(map(str, places))
        raise InvalidArgument(f"no flight record (*{SUFFIX}) in {shown}. UCCL_EP_FLIGHT_RECORDER says where they go.")
    ended = [record for _, record in found if record.reason != RUNNING]
    newest = max(ended or [record for _, record in found], key=lambda record: record.wall_s).session
    found = [(file, record) for file, record in found if record.session == newest]
    ((group, _),) = Counter(_group(record) for _, record in found).most_common(1)
    of_rank: dict[int, Record] = {}
    for file, record in sorted(
        found, key=lambda pair: (pair[0].suffix == SUFFIX, pair[1].wall_s)
    ):  # what was written last
        if _group(record) == group:
            of_rank[record.rank] = record
        else:
            _skip(f"{file} is of another group than most records of this job")
    return [of_rank[rank] for rank in sorted(of_rank)]


def _journals() -> _Found:
    """Those that tell something. Others are no news: their ranks never were ready, or have ended in order meanwhile."""
    found: _Found = []
    for path in journals():
        with suppress(InvalidArgument):
            found.append((path, read_journal(path)))
    return found


def _meant_for(record: Record, places: list[Path]) -> bool:
    """Whether a rank would have written its record to one of the places."""
    return any(_same(Path(str(record.settings.get(FOLDER, ""))), place) for place in places)


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return one.absolute() == other.absolute()


def _files(place: Path) -> list[Path]:
    try:
        if not place.is_dir():
            return [place]
        return sorted(path for path in place.iterdir() if path.name.endswith((SUFFIX, JOURNAL)))
    except OSError as error:
        _skip(f"{place} cannot be read: {error.strerror}")
        return []


def _group(record: Record) -> tuple[object, ...]:
    """What all records of a session have alike."""
    return (record.num_ranks, *record.hostnames, *record.node_of)


def _skip(why: str) -> None:
    print(f"uccl-ep: skipped: {printable(why)}", file=sys.stderr)
