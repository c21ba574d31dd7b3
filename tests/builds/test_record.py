"""Every name of every build of DeepEP is here, or refused with a reason, and every argument is taken by name."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.builds import record
from tests.builds.record import BUILDS, NOT_TAKEN, answer, argument_names, first_moved, not_taken, recorded
from uccl_ep import install_as_deep_ep, uninstall_as_deep_ep

MOVED = {  # in some branch a call by position means something else from one argument on; see docs/pages/api/builds.md
    "Buffer.get_low_latency_rdma_size_hint", "Buffer.internode_dispatch", "Buffer.low_latency_combine",
    "Buffer.low_latency_dispatch", "ElasticBuffer.dispatch", "buffer.Buffer", "buffer_rocm.Buffer",
    "buffers.legacy.Buffer", "utils.check_nvlink_connections",
}  # fmt: skip


@pytest.fixture(autouse=True)
def hook() -> Iterator[None]:
    install_as_deep_ep()
    yield
    uninstall_as_deep_ep()


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.name)
def test_record_no_name_is_absent_and_no_argument_unknown(build: Any) -> None:
    names = {n: s for n, of in recorded()["names"].items() for s, builds in of.items() if build.name in builds}
    assert len(names) > 20 and build.name in recorded()["versions"]
    answers = {name: answer(build.package, name, signature) for name, signature in names.items()}
    assert [name for name, found in answers.items() if found.kind == "absent"] == []
    lacking = {name: found.words for name, found in answers.items() if found.kind == "present" and found.words}
    assert lacking == {name: argument for name, (argument, _) in NOT_TAKEN.items() if name in names}
    assert all(found.words for found in answers.values() if found.kind == "refused")  # with a reason
    moved = {name for name, found in answers.items() if found.by_name_from}
    assert moved <= MOVED, "look at what a call by position would mean here, and add to MOVED"
    assert answer(build.package, next(n for n in names if n.endswith("EventOverlap")), "").kind == "present"


def test_record_tells_the_kinds_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer("deep_ep", "Buffer.nothing", "(x)").kind == answer("deep_ep", "nothing.at.all", "").kind == "absent"
    assert answer("deep_ep", "EPHandle.deterministic_sort", "(x)").words.startswith("rows come in order")
    assert answer("deep_ep", "buffers.engram.EngramBuffer.fetch", "(srcs)").kind == "refused"  # its class is
    assert answer("deep_ep", "Buffer.combine", "(x, handle, other=1)").words == "other"
    thing = SimpleNamespace(take=lambda x, *, y=0: None, any=lambda **more: None)
    assert not_taken(thing.take, "(x, z=(1, 2), *, y=0)") == ["z"] and not_taken(thing.any, "(x, z)") == []
    assert argument_names("(a, b=(1, 2), *parts, c=[x for x in f(1, 2)], **more)") == ["a", "b", "c"]
    assert argument_names("()") == [] and record.ELSEWHERE
    assert first_moved(thing.take, "(x, y=0)") == "y" and first_moved(thing.take, "(x, *, y=0)") == ""
    assert first_moved(thing.take, "(y, x)") == "y" and first_moved(thing.any, "(*, x)") == ""
