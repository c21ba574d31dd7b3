"""Calls are numbered without gaps, and a third outstanding result is refused."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uccl_ep import InvalidArgument
from uccl_ep.low_latency.epochs import Epochs


def test_low_latency_epochs_allow_two_outstanding() -> None:
    epochs = Epochs()
    assert [epochs.next("dispatch"), epochs.next("dispatch")] == [1, 2]
    with pytest.raises(InvalidArgument, match="a third dispatch before the receive hook of dispatch number 1 has run"):
        epochs.next("dispatch")
    epochs.finish(2)  # out of order: the first still holds its set
    with pytest.raises(InvalidArgument, match="number 1"):
        epochs.next("dispatch")
    epochs.finish(1)
    assert epochs.consumed == 2
    assert epochs.next("dispatch") == 3


@given(st.lists(st.booleans(), max_size=100), st.randoms(use_true_random=False))
def test_low_latency_epochs_consumed_leaves_none_out(steps: list[bool], order: random.Random) -> None:
    epochs, open_, finished = Epochs(), [], set()
    for send in steps:
        if send and epochs.sent - epochs.consumed < 2:
            open_.append(epochs.next("x"))
        elif open_:
            epoch = open_.pop(order.randrange(len(open_)))
            finished.add(epoch)
            epochs.finish(epoch)
        assert epochs.consumed == next(e for e in range(len(finished) + 1) if e + 1 not in finished)
