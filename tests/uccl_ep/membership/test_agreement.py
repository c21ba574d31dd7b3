"""Agreement with a quorum: groups that a network parts, tries after a refusal, and what those left out are told."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tests.uccl_ep.membership.test_agreement_service import SECRET, Attempt, results
from tests.uccl_ep.membership.test_neighbours import sleeper
from tests.uccl_ep.proxies import eventually
from uccl_ep.errors import NoQuorum, PeerLost
from uccl_ep.membership.agreement import Agreement
from uccl_ep.membership.agreement_service import AgreementService
from uccl_ep.membership.agreement_view import CONFIRMING, PROPOSING, View
from uccl_ep.membership.neighbours import Neighbours
from uccl_ep.membership.quorum import Quorum

DEADLINE_S = 0.5  # of ranks that a cut hides


@contextmanager
def parted(*groups: Sequence[int]) -> Iterator[list[AgreementService]]:
    """Ranks that reach those of their own group only: what they send to others is lost."""
    made = [
        AgreementService(rank, sum(map(len, groups)), SECRET, "127.0.0.1", quorum=True)
        for rank in sorted(sum(map(list, groups), []))
    ]
    for group in groups:
        join(made, group)
    try:
        yield made
    finally:
        for one in made:
            one.close()


def join(made: list[AgreementService], group: Sequence[int]) -> None:
    for rank in group:
        made[rank].meet({other: made[other].address for other in group})


class Try(Attempt):
    """An attempt that goes on without a quorum."""

    def run(self) -> None:
        one, deadline_s, _, hints = self._call
        try:
            self.result = one.agree(hints, deadline_s, allow_minority=True)
        except NoQuorum as error:
            self.result = error


def refused(found: list[Any]) -> bool:
    return all(isinstance(one, NoQuorum) for one in found)


def test_agreement_of_two_halves_is_one_groups() -> None:
    with parted([0, 3], [1, 2]) as ranks:
        found = results([Attempt(one, DEADLINE_S) for one in ranks])
        assert found[0] == found[3] == [0, 3] and refused(found[1:3])
        assert found[1].missing == (0, 3) and found[1].needed == 3
        join(ranks, range(4))
        excluded = results([Attempt(ranks[rank], 5.0) for rank in (1, 2)])
        assert all(isinstance(error, PeerLost) and "was excluded: rank " in str(error) for error in excluded)


def test_agreement_of_a_majority_whoever_is_the_lowest() -> None:
    with parted([0], [1, 2]) as ranks:
        found = results([Attempt(one, DEADLINE_S) for one in ranks])
        assert found[1:] == [[1, 2]] * 2 and refused(found[:1])


def test_agreement_after_a_refusal_begins_anew_with_all_that_are_reached() -> None:
    with parted([0], [1], [2]) as ranks:
        for _ in range(2):
            assert refused(results([Attempt(one, DEADLINE_S) for one in ranks]))
        assert refused(results([Attempt(ranks[1], DEADLINE_S)]))  # one has tried more often than the others
        join(ranks, range(3))
        assert results([Attempt(one, 5.0) for one in ranks]) == [[0, 1, 2]] * 3


def test_agreement_refuses_who_missed_a_confirmation_and_begins_anew_with_it() -> None:
    with parted([0, 1, 2], [3, 4, 5, 6]) as ranks:
        send = ranks[2]._send

        def lose(rank: int, generation: int, suspects: frozenset[int], phase: int) -> None:
            if not (rank == 1 and phase == 1):
                send(rank, generation, suspects, phase)

        ranks[2]._send = lose  # type: ignore[method-assign]
        attempts = [Attempt(ranks[0], DEADLINE_S), Attempt(ranks[1], 60.0), Attempt(ranks[2], DEADLINE_S)]
        assert refused(results(attempts)), "rank 1 learns it from the others, long before its own deadline"
        ranks[2]._send = send  # type: ignore[method-assign]
        assert results([Try(ranks[rank], DEADLINE_S) for rank in (0, 1, 2)]) == [[0, 1, 2]] * 3


def test_agreement_without_a_quorum_when_all_allow_it() -> None:
    with parted([0, 1], [2, 3]) as ranks:
        mixed = results([Attempt(ranks[2], DEADLINE_S), Try(ranks[3], DEADLINE_S)])
        assert refused(mixed)
        assert "rank(s) 2 did not ask for allow_minority=True" in str(mixed[1])
        assert results([Try(ranks[rank], DEADLINE_S) for rank in (2, 3)]) == [[2, 3]] * 2


def test_agreement_is_counted_of_the_last_life_that_began() -> None:
    with parted([0, 1, 2], [3, 4]) as ranks:
        assert results([Attempt(one, DEADLINE_S) for one in ranks[:3]]) == [[0, 1, 2]] * 3
        ranks[1].close()
        assert refused(results([Attempt(ranks[rank], DEADLINE_S) for rank in (0, 2)])), "2 of 5: it may go on with 3, 4"
        ranks[0].settle()  # it knows that all have begun; the others take its word
        assert results([Attempt(ranks[rank], DEADLINE_S) for rank in (0, 2)]) == [[0, 2]] * 2


def see(one: Agreement, **processes: int) -> np.ndarray[Any, Any]:
    """Shows a rank the processes of others of its host; returns its words."""
    words = np.zeros(one.num_ranks, np.uint64)
    one.see(Neighbours(words, {int(rank[1:]): (pid, np.zeros(1, np.uint64)) for rank, pid in processes.items()}))
    return words


def test_agreement_counts_out_who_has_ended_also_for_ranks_of_other_hosts() -> None:
    with sleeper() as child, parted([0], [1, 2], [3, 4]) as ranks:
        see(ranks[1], r0=child.pid)
        see(ranks[2], r0=child.pid)
        child.kill()
        child.wait()
        ranks[0].close()
        join(ranks, [1, 3])
        ranks[2].close()
        ranks[4].close()
        found = results([Attempt(ranks[rank], DEADLINE_S) for rank in (1, 3)])
        assert found == [[1, 3]] * 2  # of 1, 2, 3, 4; rank 3 has only rank 1's word for it


def test_agreement_counts_out_who_is_suspected_in_the_step_of_the_vote() -> None:
    """All suspects come at once, when the others have waited long: a death among them counts in the vote itself."""
    quorum = Quorum(1, 5)
    one = Agreement(1, 5, quorum, lambda rank, message: None)
    with sleeper() as child:
        see(one, r0=child.pid)
        child.kill()
        child.wait()
        with one._changed:
            one._joined = True
            one._open_ballot(1)
            one._moved_at -= 100
            one._views[3] = View(1, PROPOSING, frozenset({0, 2, 4}), frozenset(), 1, 0, False, False, ())
            one._gone |= {0, 2, 4}
            one._step()
        assert one._phase == CONFIRMING and one._backed and quorum.dead == {0}


def test_agreement_waits_for_a_process_that_is_about_to_end() -> None:
    """Its sockets close a moment before."""
    with sleeper() as child, parted([0], [1]) as ranks:
        see(ranks[1], r0=child.pid)
        join(ranks, [0, 1])
        ranks[0].close()
        attempt = Attempt(ranks[1], 20.0)
        assert eventually(lambda: 0 in ranks[1]._refusing)
        child.kill()
        child.wait()
        assert results([attempt]) == [[1]]


def test_agreement_of_ranks_whose_listeners_refuse_though_they_live() -> None:
    with parted([0], [1], [2]) as ranks:
        for one in ranks:
            see(one, **{f"r{rank}": os.getpid() for rank in range(3) if rank != one.rank})
            one.meet(dict.fromkeys(range(3), "127.0.0.1:1"))  # of another network namespace: nobody listens here
        found = results([Attempt(one, 2.0) for one in ranks])
        assert refused(found) and all("live on this host" in str(error) for error in found)


def test_agreement_tells_neighbours_that_it_votes_against_before_it_says_so() -> None:
    with parted([0, 1], [2]) as ranks:
        words = see(ranks[2], r1=os.getpid())
        ranks[1].see(Neighbours(np.zeros(3, np.uint64), {2: (os.getpid(), words[1:2])}))
        send, sent = ranks[1]._send, []

        def watch(rank: int, generation: int, suspects: frozenset[int], phase: int) -> None:
            if phase >= 1:
                sent.append(int(words[1]))
            send(rank, generation, suspects, phase)

        ranks[1]._send = watch  # type: ignore[method-assign]
        assert results([Attempt(ranks[rank], DEADLINE_S) for rank in (0, 1)]) == [[0, 1]] * 2
        assert sent and set(sent) == {3}


def test_agreement_tells_an_excluded_rank_that_reports_a_wait() -> None:
    with parted([0, 1], [2]) as ranks:
        assert results([Attempt(ranks[rank], DEADLINE_S) for rank in (0, 1)]) == [[0, 1]] * 2
        assert ranks[2].excluded_by is None
        join(ranks, range(3))
        ranks[2].report_wait(0, "dispatch")
        assert ranks[2].wait_reports(1, 20.0) == {} and ranks[2].excluded_by in (0, 1)
        assert "rank 2 was excluded: rank " in str(ranks[2].exclusion())
