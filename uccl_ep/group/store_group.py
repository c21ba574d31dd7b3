"""Ranks that meet in a key-value store: a group for servers whose ranks come and go, with no communicator among them.

Ranks have numbers below a fixed size, of which some are members; the others are absent, and may be members of a later
group. Members of a change find each other by what each of them says in the store, so a rank that is new needs to know
nothing but the store and the members.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Collection
from datetime import timedelta
from typing import Any, Protocol

import msgpack

from uccl_ep.errors import PeerTimeout, refuse

_POLL_S = 0.005
_PREFIX = "uccl_ep"


class Store(Protocol):
    """What is used of a torch.distributed.Store: TCPStore, FileStore, HashStore, PrefixStore."""

    def set(self, key: str, value: str | bytes) -> None: ...

    def get(self, key: str) -> bytes: ...

    def check(self, keys: list[str]) -> bool: ...

    def wait(self, keys: list[str], timeout: timedelta) -> None: ...


class StoreGroup:
    """The ranks `members` of `size`, which meet in a torch.distributed.Store. Making one waits for nobody; the first
    exchange waits until all members have come to theirs.

    Args:
        store: one that all members reach.
        rank: this rank's number.
        size: one more than the highest number that a rank may ever have.
        members: numbers of those that take part, this one included; None: all.
        timeout_s: how long each exchange waits for the others.

    Attributes:
        absent: numbers below `size` of ranks that take no part; a Buffer masks them.
        keeps_places: they may take part later, and a Buffer with enable_shrink lays its memory out for them.

    Raises:
        InvalidArgument: members that cannot be.
    """

    keeps_places = True

    def __init__(
        self, store: Store, rank: int, size: int, members: Collection[int] | None = None, timeout_s: float = 100.0
    ) -> None:
        self._store, self._rank, self._size, self._timeout_s = store, rank, size, timeout_s
        self._members = sorted(range(size) if members is None else set(members))
        if rank not in self._members or not 0 <= self._members[0] <= self._members[-1] < size:
            refuse("members", members, f"ranks of 0 to {size - 1}, {rank} among them")
        self.absent = frozenset(range(size)) - frozenset(self._members)
        self._exchanges, self._name = 0, ""

    def rank(self) -> int:
        """This rank's number."""
        return self._rank

    def size(self) -> int:
        """Numbers that ranks may have, absent ones included."""
        return self._size

    def sized(self, size: int) -> StoreGroup:
        """The same members among other numbers: this group, from now on, with `size` of them."""
        if size <= self._members[-1]:
            refuse("size", size, f"above {self._members[-1]}, the highest member")
        self._size, self.absent = size, frozenset(range(size)) - frozenset(self._members)
        return self

    def all_gather_object(self, value: Any) -> list[Any]:
        """Every member's `value` (of msgpack's types) by rank, None for absent ranks. Collective among members.

        Raises:
            PeerTimeout: a member did not come in time.
        """
        self._name = self._name or self._meet()
        self._exchanges += 1
        name = f"{self._name}/{self._exchanges}"
        self._store.set(f"{name}/{self._rank}", msgpack.packb(value, use_bin_type=True))
        gathered: list[Any] = [None] * self._size
        deadline = time.monotonic() + self._timeout_s
        for member in self._members:
            gathered[member] = msgpack.unpackb(self._await(f"{name}/{member}", member, deadline), raw=False)
        return gathered

    def _meet(self) -> str:
        """A name for what these members exchange, which no other group has had. Each says in the store that it is
        here, under a number of its own that is new; the name is made of all of them, and holds once all have seen it.
        What an earlier process with a member's number has left there gives a name that nobody confirms."""
        mine, said = secrets.token_hex(8), ""
        place = f"{_PREFIX}/{'.'.join(map(str, self._members))}"
        keys = [f"{place}/{member}" for member in self._members]
        self._store.set(f"{place}/{self._rank}", mine)
        deadline = time.monotonic() + self._timeout_s
        while True:
            missing = [m for m, key in zip(self._members, keys, strict=True) if not self._store.check([key])]
            if not missing:
                all_ = b"".join(self._store.get(key) for key in keys)
                name = f"{place}/{hashlib.sha256(all_).hexdigest()[:32]}"
                if name != said:
                    self._store.set(f"{name}/here/{self._rank}", b"1")
                    said = name
                missing = [m for m in self._members if not self._store.check([f"{name}/here/{m}"])]
                if not missing:
                    return name
            if time.monotonic() >= deadline:
                raise self._late(missing)
            time.sleep(_POLL_S)

    def _await(self, key: str, member: int, deadline: float) -> bytes:
        while not self._store.check([key]):
            if time.monotonic() >= deadline:
                raise self._late([member])
            time.sleep(_POLL_S)
        return bytes(self._store.get(key))

    def _late(self, missing: list[int]) -> PeerTimeout:
        ranks = ", ".join(map(str, missing))
        members = ", ".join(map(str, self._members))
        reason = f"rank(s) {ranks} of members {members} did not come in the store"
        return PeerTimeout(
            rank=self._rank, peer=missing[0], phase="the start of a group", waited_s=self._timeout_s, reason=reason
        )
