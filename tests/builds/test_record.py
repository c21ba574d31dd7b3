"""Every name of every build of DeepEP is here, or refused with a reason, and every argument is taken by name."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.builds import record
from tests.builds.record import BUILDS, NOT_TAKEN, answer, argument_names, not_taken, recorded
from uccl_ep import install_as_deep_ep, uninstall_as_deep_ep


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
    assert answer(build.package, next(n for n in names if n.endswith("EventOverlap")), "").kind == "present"


def test_record_tells_the_kinds_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer("deep_ep", "Buffer.nothing", "(x)").kind == answer("deep_ep", "nothing.at.all", "").kind == "absent"
    assert answer("deep_ep", "EPBuffer.lb_reduce_grads", "(x)").words.startswith("experts are not balanced")
    assert answer("deep_ep", "buffers.bucket.BucketBuffer.all_gather", "(srcs)").kind == "refused"  # its class is
    assert answer("deep_ep", "Buffer.combine", "(x, handle, other=1)").words == "other"
    thing = SimpleNamespace(take=lambda x, *, y=0: None, any=lambda **more: None)
    assert not_taken(thing.take, "(x, z=(1, 2), *, y=0)") == ["z"] and not_taken(thing.any, "(x, z)") == []
    assert argument_names("(a, b=(1, 2), *parts, c=[x for x in f(1, 2)], **more)") == ["a", "b", "c"]
    assert argument_names("()") == [] and record.ELSEWHERE
