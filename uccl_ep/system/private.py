"""Folders that only this user can write to, and files that are read and written as if they were not.

Compiled kernels, flight records and pages of running ranks lie in folders that may be anybody's. What is taken from
there is run as code or told as a job's story, and a name there may be a pipe, a device or a link by the time it is
used.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH  # an access list that lets others write shows in the group's bit
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def make_folder(folder: Path) -> None:
    """Makes a folder and those above it that are missing, for this user only, whatever the umask is.

    Raises:
        OSError: it cannot be made, or the way there leads over another user's link.
    """
    if why := planted(folder):
        raise OSError(why)
    folder = Path(os.path.abspath(folder))
    missing = [place for place in (folder, *folder.parents) if not os.path.lexists(place)]
    for place in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another rank makes it at the same moment
            os.mkdir(place, 0o700)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def planted(folder: Path) -> str:
    """Why the way to a folder is not to be gone: a part of it is a link of a user who is neither this one nor root;
    empty: none is."""
    whole = Path(os.path.abspath(folder))
    for place in (whole, *whole.parents):
        with contextlib.suppress(OSError):
            status = place.lstat()
            if stat.S_ISLNK(status.st_mode) and status.st_uid not in (0, os.geteuid()):
                return f"{place} is a link of user {status.st_uid}, not of user {os.geteuid()}"
    return ""


def why_not_private(folder: Path, or_root: bool = False) -> str:
    """Why others than this user can put something into a folder that exists; empty: they cannot.

    Args:
        or_root: a folder that root keeps for everybody, and only root can write to, is as good.
    """
    owners = (os.geteuid(), 0) if or_root else (os.geteuid(),)
    try:
        status = folder.stat()
    except OSError as error:
        return f"{folder}: {error.strerror}"
    if status.st_uid not in owners:
        return f"{folder} belongs to user {status.st_uid}, not to user {os.geteuid()}"
    if status.st_mode & _OTHERS_WRITE:
        return f"others can write to {folder} (mode {stat.S_IMODE(status.st_mode):o}; chmod go-w {folder})"
    return planted(folder)


def private_folder(folder: Path, or_root: bool = False) -> Path:
    """The folder, made when it is missing, if nobody else can put anything into it.

    Raises:
        OSError: it cannot be made, or is not private; says why.
    """
    make_folder(folder)
    if why := why_not_private(folder, or_root):
        raise OSError(why)
    return folder


def temporary_place() -> Path:
    """Where this user's own folder among temporary files is, if there is one."""
    return Path(tempfile.gettempdir()) / f"uccl-ep-{os.geteuid()}"


def temporary_folder() -> Path:
    """This user's own among temporary files.

    Raises:
        OSError: something else is in its place: another user's, a link, or a folder that others can write to.
    """
    folder = temporary_place()
    if folder.is_symlink():
        raise OSError(f"{folder} is a link")
    return private_folder(folder)


def read_file(path: Path, most_bytes: int, or_root: bool = False, anybody: bool = False) -> bytes:
    """What is in a regular file. Never waits, whatever the name stands for, and follows no link.

    Args:
        most_bytes: a file beyond it is refused unread.
        or_root: root's file is as good as this user's. anybody: so is everybody's, also one that others can write to.

    Raises:
        OSError: it cannot be read, or is not such a file; `strerror` says why.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _refused(errno.ELOOP, "it is a link", path) from None
        if error.errno == errno.ENXIO:
            raise _refused(errno.ENXIO, "it is no regular file but a socket or a device", path) from None
        raise
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
            raise _refused(errno.EINVAL, f"it is no regular file but {kind}", path)
        if not anybody and status.st_uid not in ((os.geteuid(), 0) if or_root else (os.geteuid(),)):
            raise _refused(errno.EPERM, f"it belongs to user {status.st_uid}, not to user {os.geteuid()}", path)
        if not anybody and status.st_mode & _OTHERS_WRITE:
            raise _refused(errno.EPERM, f"others can write to it (mode {stat.S_IMODE(status.st_mode):o})", path)
        if status.st_size > most_bytes:
            raise _refused(errno.EFBIG, f"it has {status.st_size} bytes, more than {most_bytes}", path)
        with os.fdopen(file, "rb", closefd=False) as opened:
            return opened.read(status.st_size)  # one that grows meanwhile is cut off, and then damaged
    finally:
        os.close(file)


def _refused(number: int, why: str, path: Path) -> OSError:
    return OSError(number, why, str(path))


def write_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Writes a file, whole or not at all; replaces what has the name, also a link, and follows none.

    Raises:
        OSError: it cannot be written.
    """
    file, temporary = tempfile.mkstemp(prefix=".new-", dir=path.parent)
    try:
        with os.fdopen(file, "wb") as opened:
            opened.write(data)
            os.fchmod(file, mode)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
