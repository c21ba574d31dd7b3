"""Who may use a Buffer: the process that made it, through the object itself and no copy, one call at a time."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from threading import get_ident
from typing import Any, NoReturn, TypeVar, cast

from uccl_ep.errors import InvalidArgument, NotSupported, name_call

_Function = TypeVar("_Function", bound=Callable[..., Any])
_CALL = "call"

here = os.getpid()
"""This process, also in a child of fork()."""


def _arrive() -> None:
    global here
    here = os.getpid()


os.register_at_fork(after_in_child=_arrive)


def refuse_elsewhere(pid: int) -> None:
    """Raises InvalidArgument in another process than `pid`: what that one made has its threads and connections there,
    and a child of its fork() has only a picture of them."""
    if pid != here:
        raise InvalidArgument(
            f"this Buffer belongs to process {pid}, and this is process {here}, a child of its fork(): nothing was "
            f"done. Call it in process {pid}, or make a Buffer of this process's own after the fork."
        )


class NoCopies:
    """What copy, deepcopy and pickle refuse."""

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise NotSupported(
            f"a {type(self).__name__} cannot be copied or pickled: it is memory, threads and connections of one "
            "process. Pass the object itself on; another process makes a Buffer of its own."
        )


class Owner(NoCopies):
    """Of a Buffer: the process that made it, and the call that it is in.

    No lock is held across a call: a second one does not wait but is refused, whichever thread makes it.

    Attributes:
        pid: of the process. running: under _CALL, the thread that is in a call, and what it calls.
    """

    __slots__ = ("pid", "running")

    def __init__(self) -> None:
        self.pid = here
        self.running: dict[str, tuple[int, str]] = {}

    @property
    def elsewhere(self) -> bool:
        """Whether this is another process: a child of fork()."""
        return self.pid != here


def _refuse_second(name: str, thread: int, other: str) -> NoReturn:
    if thread == get_ident():
        raise InvalidArgument(
            f"{name} in the middle of {other} of the same Buffer, on one thread, is refused: a signal handler or a "
            "finalizer has called. Let it leave a note, and call when the first call has returned."
        )
    where = next((t.name for t in threading.enumerate() if t.ident == thread), thread)
    raise InvalidArgument(
        f"{name} is refused while thread {where} is in {other} of the same Buffer: it makes one call at a time. Let "
        "threads take turns, or give each a Buffer of its own."
    )


def in_turn(name: str) -> Callable[[_Function], _Function]:
    """Decorates a method of what has an `_owner`. Its refusals name it `name`, as do errors of other calls meanwhile.

    They raise InvalidArgument in another process, and while another call is under way.
    """

    def decorate(method: _Function) -> _Function:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            owner = self._owner
            if owner.pid != here:
                refuse_elsewhere(owner.pid)
            mine, running = (get_ident(), name), owner.running
            # An interrupt may come between any two lines. So what is entered is taken out by whoever finds it to be its
            # own, with operators that call nothing in between.
            try:
                other = running.setdefault(_CALL, mine)
                if other is mine:
                    return method(self, *args, **kwargs)
            except InvalidArgument as error:
                name_call(error, name)
                raise
            finally:
                if _CALL in running and running[_CALL] is mine:
                    del running[_CALL]
            _refuse_second(name, *other)

        return cast(_Function, call)

    return decorate
