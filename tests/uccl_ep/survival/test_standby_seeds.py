"""Changes of members over a simulated network of messages, each decided by a seed: who joins, leaves, prepares
something else, cannot build, is masked or dies at which word, and in what order messages of different ranks arrive.

The product's agreements and switch_members() run as they are; the lives between which they choose are empty, and steps
are met as calls meet. No rank may make a step in another life than the others, and all get one outcome at one step.
A seed draws the story; how threads run is not in its hands.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict, deque
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from uccl_ep import UcclEpError
from uccl_ep.membership.agreed_values import AgreedValues
from uccl_ep.survival import standby
from uccl_ep.survival.members import MemberChanges
from uccl_ep.system.ownership import Owner

QUICK, MANY = range(40), range(1000, 4000)
MOST, AFTER, LIMIT_S = 20000, 3, 60.0
AT_ONCE = 1000  # steps; a crowded machine may not have run the agreement's threads by then, so the others take time


@dataclass(frozen=True)
class Story:
    """What a seed stands for. Ranks 0 to ranks - 1 are there.

    Attributes:
        size: of the next group; leaver: who does not take part in it, or -1; ranks beyond those that stay join.
        odd: who disagrees, or -1, and how: never, later (by `by` steps), size.
        broken: who cannot build, or -1 (`size`: one that joins). victim: who dies at its word number `words`, or -1.
        masked: whom all others mask before step `at`, or -1.
    """

    ranks: int
    size: int
    leaver: int
    odd: int
    how: str
    by: int
    broken: int
    victim: int
    words: int
    masked: int
    at: int
    least: int

    @staticmethod
    def of(seed: int) -> Story:
        draw = random.Random(seed)
        ranks = draw.randint(2, 4)
        leaver = draw.choice([-1, -1, draw.randrange(ranks)])
        stay = ranks - (leaver >= 0)
        trouble = draw.choice(["none", "odd", "odd", "broken", "death", "death", "death", "mask"])
        other = draw.randrange(ranks)
        both = trouble == "odd" and ranks > 2 and draw.random() < 0.3  # it disagrees, and another one dies
        return Story(
            ranks=ranks,
            size=stay + draw.choice([0, 0, 1, 2]),
            leaver=leaver,
            odd=other if trouble == "odd" else -1,
            how=draw.choice(["never", "later", "size"]),
            by=draw.randint(1, 3),
            broken=draw.choice([other, 99]) if trouble == "broken" else -1,
            victim=(other + 1) % ranks if both else other if trouble == "death" else -1,
            words=draw.randint(1, 12 * ranks),
            masked=other if trouble == "mask" and ranks > 2 else -1,
            at=draw.randint(0, 6),
            least=draw.randint(1, 4),
        )


class Meeting:
    """Where the next life is built: whole when all of its ranks have come."""

    def __init__(self, size: int) -> None:
        self._changed, self._missing, self._broken = threading.Condition(), size, False

    def come(self) -> None:
        with self._changed:
            self._missing -= 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._missing == 0 or self._broken)
            if self._missing:
                raise UcclEpError("a rank did not come")

    def end(self) -> None:
        with self._changed:
            self._broken = True
            self._changed.notify_all()


class Group:
    """Of the next life."""

    def __init__(self, meeting: Meeting, rank: int, size: int, fails: bool, delay_s: float) -> None:
        self._meeting, self._rank, self._size, self._fails, self._delay_s = meeting, rank, size, fails, delay_s

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def all_gather_object(self, value: Any) -> list[Any]:
        time.sleep(self._delay_s)
        if self._fails:
            self._meeting.end()
            raise UcclEpError("no room left")
        self._meeting.come()
        return [value] * self._size


@dataclass(frozen=True)
class Terms:
    budgets: tuple[int, int] = (0, 0)
    low_latency_mode: bool = False
    settings: Any = field(default_factory=lambda: SimpleNamespace(timeout_s=30.0))
    captured: Any = None


class EmptyLife:
    """A life of one rank, with nothing in it but the number of its steps."""

    def __init__(self, number: int, rank: int, ranks: int, changes: Any, masks: set[int], gone: Any = None) -> None:
        self.steps = self.made = 0
        self.terms: Any = Terms()
        self.session = SimpleNamespace(
            life=number, rank=rank, num_ranks=ranks, agreement_service=SimpleNamespace(changes=changes),
            check=lambda: None, publish_again=lambda: True, has_gone=gone or (lambda other: False),
        )  # fmt: skip
        self.device = SimpleNamespace(
            begin=lambda: None, check_host_wait=lambda: None, catch_up=lambda: None, capturing=lambda: False,
            host_memory=True,
        )  # fmt: skip
        self.masks, self.captured = SimpleNamespace(masked=lambda: set(masks)), lambda: None

    def calls_made(self) -> tuple[int, int, int, int]:
        return self.made, self.made, 0, 0

    def settle(self, what: str) -> None:
        pass

    def end(self) -> None:
        pass


def build(group: Group, terms: Any) -> EmptyLife:
    group.all_gather_object(None)
    changes = AgreedValues("k", "change of members", group.rank(), group.size(), lambda to, said: None)
    return EmptyLife(2, group.rank(), group.size(), changes, set())


class Rank(MemberChanges):
    """What is left of a Buffer."""

    def __init__(self, life: Any) -> None:
        self._owner, self.runtime, self.group = Owner(), life.session, None
        self._life, self.num_nvl_bytes, self.num_rdma_bytes = life, 0, 0
        self.rank, self.group_size = life.session.rank, life.session.num_ranks

    @property
    def _living(self) -> Any:
        return self._life


class Change:
    """One story. `wrong` is what must not be."""

    def __init__(self, seed: int) -> None:
        self.story, self._draw = Story.of(seed), random.Random(seed + 1)
        story = self.story
        self._lock = threading.Condition()
        self._queues: dict[tuple[int, int], deque[Any]] = defaultdict(deque)
        self._words, self._over = story.words, False
        self.dead: set[int] = set()
        self.gone = set[int]()  # from the steps that ranks make together
        self._told = False
        self.at = dict.fromkeys(range(story.ranks), -1)
        self.lives: dict[int, dict[int, int]] = defaultdict(dict)  # by step and rank
        self.outcomes: dict[int, tuple[int, str]] = {}
        self.wrong: list[str] = []
        self.masks: list[set[int]] = [set() for _ in range(story.ranks)]
        self.changes = [
            AgreedValues("k", "change of members", r, story.ranks, partial(self._say, r)) for r in range(story.ranks)
        ]
        for one in self.changes:
            one.begin(1)
        self.meeting = Meeting(story.size)
        told, masks = lambda other: self._told and other == story.victim, self.masks
        self.ranks = [Rank(EmptyLife(1, r, story.ranks, c, masks[r], told)) for r, c in enumerate(self.changes)]

    # ---- the network -----------------------------------------------------------------------------------------------

    def _say(self, rank: int, to: int, said: Any) -> None:
        """Some thread of a rank, which may hold locks of its own."""
        with self._lock:
            if rank == self.story.victim and rank not in self.dead:
                self._words -= 1
                if self._words <= 0:
                    self.dead.add(rank)
            if rank not in self.dead:
                self._queues[rank, to].append(said)
            self._lock.notify_all()

    def deliver(self) -> None:
        """Messages of a pair in their order, those of different pairs in any. Of a rank that has died some come yet."""
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._over or any(self._queues.values()) or self._to_tell())
                if self._over:
                    return
                full = [pair for pair, queue in self._queues.items() if queue]
                dead = self._to_tell()
                tell = bool(dead) and (not full or self._draw.random() < 0.2)
                if tell:
                    self._told, victim = True, next(iter(dead))
                    self._queues = defaultdict(deque, {p: q for p, q in self._queues.items() if victim not in p})
                    self.gone.add(victim)
                    self._lock.notify_all()
                else:
                    pair = self._draw.choice(full)
                    said = self._queues[pair].popleft()
            if tell:
                self._bury(victim)
            elif pair[1] not in self.dead:
                self.changes[pair[1]].hear(pair[0], said)

    def _to_tell(self) -> set[int]:
        return set() if self._told else self.dead

    def _bury(self, victim: int) -> None:
        for other, one in enumerate(self.changes):
            if other == victim:
                one.close()
            else:
                self.masks[other].add(victim)
                one.lose(victim)
        self.meeting.end()

    # ---- ranks -----------------------------------------------------------------------------------------------------

    def meet(self, rank: int, number: int) -> bool:
        """A step that all who live make together; False: there will be none."""
        life: Any = self.ranks[rank]._life
        with self._lock:
            if rank in self.dead or rank in self.gone:
                return False
            self.lives[number][rank] = life.session.life
            self.at[rank] = number
            life.made += 1
            self._lock.notify_all()

            def together() -> bool:
                return self._over or all(n >= number for r, n in self.at.items() if r not in self.gone | self.dead)

            return self._lock.wait_for(together, LIMIT_S) and not self._over

    def body(self, rank: int, delays: list[float]) -> None:
        try:
            self._steps(rank, delays)
        finally:
            with self._lock:
                self.gone.add(rank)
                self._lock.notify_all()

    def _steps(self, rank: int, delays: list[float]) -> None:
        story, me = self.story, self.ranks[rank]
        begins = 2 + (story.by if (rank, story.how) == (story.odd, "later") else 0)
        for number in range(MOST):
            if number == story.at + 2 and story.masked >= 0:
                self._mask(rank)
            if number == begins and (rank, story.how) != (story.odd, "never"):
                me.prepare_members(self._group(rank, delays[rank]), timeout_s=30.0)
            if not self.meet(rank, number):
                return
            if number >= AT_ONCE:
                time.sleep(0.001)
            try:
                if me.switch_members():
                    self.outcomes[rank] = number, ""
                    if rank == story.leaver:
                        return
            except UcclEpError as error:
                self.outcomes[rank] = number, str(error)
                if rank == story.masked:
                    return
            if rank in self.outcomes and number >= self.outcomes[rank][0] + AFTER:
                return
        self.wrong.append(f"rank {rank} has had no outcome in {MOST} steps")

    def _mask(self, rank: int) -> None:
        """All but one leave it out, as agree_on_masks() has it; the one goes no further with them."""
        with self._lock:
            self.gone.add(self.story.masked)
            if rank != self.story.masked:
                self.masks[rank].add(self.story.masked)
            self._lock.notify_all()

    def _group(self, rank: int, delay_s: float) -> Group | None:
        story = self.story
        if rank == story.leaver:
            return None
        number = rank - (0 <= story.leaver < rank)
        size = story.size + (1 if (rank, story.how) == (story.odd, "size") else 0)
        return Group(self.meeting, number, size, rank == story.broken, delay_s)

    def run(self) -> None:
        story = self.story
        slow = [self._draw.choice([0.0, 0.0, 0.01]) for _ in range(story.ranks + story.size)]
        stay = story.ranks - (story.leaver >= 0)
        threads = [threading.Thread(target=self.body, args=(r, slow)) for r in range(story.ranks)]
        joiners = [
            threading.Thread(target=_joins, args=(Group(self.meeting, r, story.size, story.broken == 99, slow[-1]),))
            for r in range(stay, story.size)
        ]
        network = threading.Thread(target=self.deliver)
        for thread in (network, *threads, *joiners):
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
            if thread.is_alive():
                self.wrong.append("a rank waits for ever")
        with self._lock:
            self._over = True
            self._lock.notify_all()
        self.meeting.end()
        for one in self.changes:
            for other in range(story.ranks):
                one.lose(other)
        for rank in self.ranks:
            rank._end_change()
        for one in self.changes:
            one.close()
        for thread in (network, *joiners):
            thread.join()
        self._judge()

    def _judge(self) -> None:
        story = self.story
        left = [r for r in range(story.ranks) if r not in self.dead and r != story.masked]
        for number, lives in self.lives.items():
            if len({life for rank, life in lives.items() if rank in left}) > 1:
                self.wrong.append(f"step {number} is made in more than one life: {lives}")
        found = {self.outcomes.get(r) for r in left}
        if len(found) != 1:
            self.wrong.append(f"other outcomes: { {r: self.outcomes.get(r) for r in left} }")
            return
        how = next(iter(found))
        if how is None or self.wrong:
            self.wrong.append(f"no outcome: {self.outcomes}")
            return
        stay = [r for r in left if r != story.leaver]
        alone = story.how == "size" and (story.odd == story.leaver or len(stay) < 2)
        disagree = story.odd in left and len(left) > 1 and not alone
        if disagree and not (" prepared " in how[1] or (how[1] and story.victim >= 0)):
            self.wrong.append(f"nobody names rank {story.odd}: {how}")
        untroubled = max(story.odd, story.victim, story.masked) < 0 and story.broken not in (*left, 99)
        if untroubled and how[1]:
            self.wrong.append(f"nothing was wrong, and they stay: {how}")
        if story.broken in set(left) - {story.leaver} and "no room left" not in how[1]:
            self.wrong.append(f"rank {story.broken} could not build: {how}")


def _joins(group: Group) -> None:
    try:
        build(group, None)
    except UcclEpError:
        pass


def play(seed: int, monkeypatch: pytest.MonkeyPatch) -> Change:
    change = Change(seed)
    monkeypatch.setattr(standby, "Life", build)
    monkeypatch.setattr(standby, "_LEAST", change.story.least)
    monkeypatch.setattr(standby, "_AHEAD_S", 0.0)
    change.run()
    assert not change.wrong, (seed, change.story, change.wrong)
    return change


@pytest.mark.parametrize("seed", QUICK)
def test_standby_seeds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    play(seed, monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_standby_many_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    switched = sum(any(how == "" for _, how in play(seed, monkeypatch).outcomes.values()) for seed in MANY)
    print(f"{len(MANY)} seeds, {switched} of them switched")
