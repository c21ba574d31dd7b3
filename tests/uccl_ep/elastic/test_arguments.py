"""What the elastic calls have in common: ignored numbers, events before and after a call."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.uccl_ep.elastic.test_dispatch import options_of
from tests.uccl_ep.elastic.worlds import HIDDEN, a_case, on_ranks
from tests.uccl_ep.ranks import assert_refused
from uccl_ep import EventHandle, EventOverlap, InvalidArgument, ThreadGroup
from uccl_ep.elastic import ElasticBuffer
from uccl_ep.elastic.arguments import behind, check_ignored, ended


def test_arguments_that_are_ignored_are_numbers_still() -> None:
    check_ignored(num_qps=0, num_sms=8.0)
    for bad in (-1, 0.5, "8", None):
        with pytest.raises(InvalidArgument, match="num_qps"):
            check_ignored(num_sms=1, num_qps=bad)


def test_arguments_events() -> None:
    event = EventHandle()
    assert behind(event, True) is event and behind(None, False) is behind(None, True) is None
    assert behind(EventOverlap(event), True) is event
    for bad in ((event, False), (3, True)):
        with pytest.raises(InvalidArgument, match="previous_event"):
            behind(*bad)
    assert ended(True).event is not None and ended(False).event is None


def test_arguments_are_judged_alike_by_every_call(variables: Any) -> None:
    variables()
    c = a_case(5, 1, "uniform")

    def body(group: ThreadGroup, buffer: ElasticBuffer) -> None:
        x, options, out = c.x[0], options_of(c, 0), {"recv_x_out": torch.empty(90, HIDDEN).bfloat16()}
        rows, _, _, handle, _ = buffer.dispatch(x, **options)
        into = {**options, **out, "recv_topk_weights_out": torch.empty(90)}
        more = buffer.dispatch_expanded_into(x, **into)[3]
        calls: dict[str, Any] = {
            "dispatch": lambda **bad: buffer.dispatch(x, **options, **bad),
            "combine": lambda **bad: buffer.combine(rows, handle, **bad),
            "into": lambda **bad: buffer.dispatch_expanded_into(x, **into, **bad),
            "cached into": lambda **bad: buffer.dispatch_cached_expanded_into(x, handle=more, **out, **bad),
        }
        for call in calls.values():
            assert_refused(lambda c=call: c(num_qps=-1), ["num_qps"])
            assert_refused(lambda c=call: c(previous_event=EventHandle()), ["previous_event"])

    on_ranks(1, body)
