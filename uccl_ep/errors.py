"""Every error a user of uccl_ep can see.

Two families: a call that was refused before anything was sent (InvalidArgument, SettingsMismatch, NotSupported), and a
wait that ended without what it waited for (PeerTimeout, PeerLost, TransportError; of recover(), NoQuorum). Each message
names who, where, what was expected and what was seen, because "it hangs" with no rank in it is what users of such
libraries report first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])
_MAX_VALUE_CHARS = 200  # a tensor or a long list as an argument must not bury the sentence around it


class UcclEpError(RuntimeError):
    """Base of every error raised by this package. A RuntimeError, which is what DeepEP raises on a timeout.

    Attributes:
        flight_record: path of what this rank wrote down about it (uccl_ep.recorder); empty: nothing.
    """

    flight_record: str = ""


class InvalidArgument(UcclEpError, ValueError):
    """An argument or a setting is refused; nothing was sent. Raised through `refuse`.

    Attributes: `call` (the method that was called), `argument` (its name), `value` (as given), `allowed` and `hint`
    (text); empty when not known.
    """

    def __init__(self, message: str, *, argument: str = "", value: object = None, allowed: str = "", hint: str = ""):
        super().__init__(message)
        self.call = ""
        self.argument = argument
        self.value = value
        self.allowed = allowed
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.call}: {super().__str__()}" if self.call else super().__str__()


class SettingsMismatch(UcclEpError):
    """Ranks of one group were started with settings that must agree and do not. Raised on every rank before traffic."""


class TransportError(UcclEpError):
    """The network refused or failed an operation in a way that is not one peer's death."""


class NotSupported(UcclEpError):
    """A feature that DeepEP's signatures name and this build or machine does not have."""


class _PeerError(UcclEpError):
    """A peer did not do its part. All arguments are keywords, each is also an attribute, None means "not known".

    Args:
        rank: the rank that reports.
        peer: the rank the report is about.
        host: the peer's host name.
        phase: what was going on, such as "dispatch".
        expected, seen: arrivals that were due from the peer, and that had come.
        waited_s: how long the reporting rank waited, in seconds.
        last_seen_s: how long ago the peer was last heard of, in seconds.
        reason: why the peer is gone, in words: the network's, or its own.
    """

    _verb = "failed"

    def __init__(
        self,
        *,
        rank: int | None = None,
        peer: int | None = None,
        host: str | None = None,
        phase: str | None = None,
        expected: int | None = None,
        seen: int | None = None,
        waited_s: float | None = None,
        last_seen_s: float | None = None,
        reason: str | None = None,
    ) -> None:
        self.rank = rank
        self.peer = peer
        self.host = host
        self.phase = phase
        self.expected = expected
        self.seen = seen
        self.waited_s = waited_s
        self.last_seen_s = last_seen_s
        self.reason = reason
        super().__init__(self._message())

    def _message(self) -> str:
        who = "an unknown rank" if self.peer is None else f"rank {self.peer}"
        where = f" (host {self.host})" if self.host else ""
        when = f" in {self.phase}" if self.phase else ""
        facts = [self.reason] if self.reason else []
        if self.seen is not None or self.expected is not None:
            seen = "unknown" if self.seen is None else str(self.seen)
            due = "an unknown number" if self.expected is None else str(self.expected)
            facts.append(f"{seen} of {due} arrivals")
        if self.last_seen_s is not None:
            facts.append(f"last seen {self.last_seen_s:.1f} s ago")
        if self.waited_s is not None:
            facts.append(f"waited {self.waited_s:.1f} s")
        if self.rank is not None:
            facts.append(f"reported by rank {self.rank}")
        return f"{who}{where} {self._verb}{when}" + (": " + ", ".join(facts) if facts else "")

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions pickle by positional arguments by default; these have none, and a parent process must still be
        # able to read a worker's error.
        return _rebuild_peer_error, (type(self), dict(self.__dict__))


class PeerTimeout(_PeerError):
    """A wait for a peer passed its deadline; the peer may be slow or dead. Arguments and attributes: the base's."""

    _verb = "timed out"


class PeerLost(_PeerError):
    """A peer is known to be gone: its process ended, its connection closed, or the network says that it no longer
    reaches it. Arguments and attributes: the base's."""

    _verb = "lost"


class NoQuorum(UcclEpError):
    """recover() found too few ranks to be certain that no others go on as the same Buffer. Nothing was changed.

    Attributes:
        missing: ranks that may live and go on by themselves.
        needed: how many ranks must be left.
    """

    def __init__(self, message: str, *, missing: tuple[int, ...] = (), needed: int = 0) -> None:
        super().__init__(message)
        self.missing = missing
        self.needed = needed


def _rebuild_peer_error(kind: type[_PeerError], fields: dict[str, Any]) -> _PeerError:
    names = ("rank", "peer", "host", "phase", "expected", "seen", "waited_s", "last_seen_s", "reason")
    error = kind(**{name: fields.get(name) for name in names})
    error.__dict__.update(fields)
    return error


class Described(str):
    """A value that is told in words: an error shows them as they are, without quotation marks."""


def refuse(argument: str, value: object, allowed: str, hint: str = "") -> NoReturn:
    """Raises InvalidArgument: "`argument` must be `allowed`; got `value`. `hint`".

    Args:
        argument: the name of the argument or variable as the user writes it.
        value: what was given. A tensor is shown by shape, dtype and, where rows are not contiguous, strides, also in a
            tuple; words that are Described as they are; anything else by its repr, on one line. Cut at 200 characters.
        allowed: what would have been accepted, as words that follow "must be".
        hint: what to do about it, a sentence; optional.

    Raises:
        InvalidArgument: always.
    """
    message = f"{argument} must be {allowed}; got {shown(value)}."
    if hint:
        message += f" {hint}"
    raise InvalidArgument(message, argument=argument, value=value, allowed=allowed, hint=hint)


def named(function: _Function) -> _Function:
    """Decorates a public function or method: what is refused in it names it, a constructor by its class.

    Where one calls another, the outer name stays: that is what the user has called.
    """
    name = function.__name__
    if name == "__init__":
        name = function.__qualname__.split(".")[-2]

    @functools.wraps(function)
    def naming(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except InvalidArgument as error:
            name_call(error, name)
            raise

    return cast(_Function, naming)


def name_call(error: InvalidArgument, name: str) -> None:
    """A refusal leaves the call `name`. What `refuse` did not raise is a sentence of its own, and stays as it is."""
    if error.argument or error.call:
        error.call = name


def one_of(names: Iterable[object]) -> str:
    """ "a, b or c": how `allowed` lists what can be chosen."""
    *others, last = map(str, names)
    return f"{', '.join(others)} or {last}" if others else last


def shown(value: object) -> str:
    """How an error shows a value: see `refuse`."""
    if isinstance(value, Described):
        text = str(value)
    elif _is_array(value):
        text = _array_in_words(value)
    elif isinstance(value, (tuple, list)) and any(map(_is_array, value)):  # the repr would be that of its elements
        text = f"({', '.join(map(shown, value))})"
    else:
        text = " ".join(repr(value).split())
    return text if len(text) <= _MAX_VALUE_CHARS else text[: _MAX_VALUE_CHARS - 3] + "..."


def _is_array(value: object) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _array_in_words(array: Any) -> str:
    layout = str(getattr(array, "layout", ""))  # only torch's arrays have one
    kind = "a tensor" if layout else "an array"
    text = f"{kind} of shape {tuple(array.shape)}, {array.dtype}"
    if layout != "torch.strided":
        return f"{text}, {layout}".rstrip(", ")
    if not array.is_contiguous():
        text += f", strides {tuple(array.stride())}: call .contiguous() on it"
    return text


def attach(error: UcclEpError, note: str) -> None:
    """Adds a note to an error: add_note of Python 3.11 on; before that it becomes a part of the message."""
    if hasattr(error, "add_note"):
        error.add_note(note)
    else:
        error.args = (f"{error}\n{note}",)
