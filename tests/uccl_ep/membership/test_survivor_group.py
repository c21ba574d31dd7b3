"""The survivors' exchanges: everybody's value by rank, None for who is absent; a member that is missing is named."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.uccl_ep.membership.test_agreement_service import Attempt, ranks, results
from uccl_ep.errors import PeerLost, PeerTimeout
from uccl_ep.membership.survivor_group import SurvivorGroup


def test_survivor_group_exchanges() -> None:
    with ranks(4) as all_ranks:
        all_ranks[1].close()
        left = [0, 2, 3]
        results([Attempt(all_ranks[r], 5.0) for r in left])
        found: dict[int, Any] = {}

        def body(rank: int) -> None:
            group = SurvivorGroup(all_ranks[rank], ["h"] * 4, 5.0)
            assert (group.rank(), group.size(), group.absent) == (rank, 4, {1})
            found[rank] = [group.all_gather_object(b"%d of %d" % (rank, i)) for i in range(5)]

        threads = [threading.Thread(target=body, args=(rank,)) for rank in left]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20.0)
        wanted = [[b"%d of %d" % (r, i) if r != 1 else None for r in range(4)] for i in range(5)]
        assert found == dict.fromkeys(left, wanted)


def test_survivor_group_says_who_is_missing() -> None:
    with ranks(3) as all_ranks:
        results([Attempt(one, 5.0) for one in all_ranks])
        group = SurvivorGroup(all_ranks[0], ["h"] * 3, 0.3)
        with pytest.raises(PeerTimeout) as late:
            group.all_gather_object(b"")
        assert late.value.peer in (1, 2) and late.value.phase == "recovery"
        all_ranks[2].close()
        with pytest.raises(PeerLost) as lost:
            SurvivorGroup(all_ranks[0], ["h"] * 3, 10.0).all_gather_object(b"")
        assert lost.value.peer == 2
        again = Attempt(all_ranks[1], 5.0)  # another begins anew: who is in an exchange comes too
        with pytest.raises(PeerLost):
            SurvivorGroup(all_ranks[0], ["h"] * 3, 10.0).all_gather_object(b"")
        assert results([again, Attempt(all_ranks[0], 5.0)]) == [[0, 1]] * 2
