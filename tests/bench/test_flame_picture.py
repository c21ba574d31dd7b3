"""Pictures of profiles: callers below callees, one scale for all, a file that is a picture."""

from __future__ import annotations

from pathlib import Path

from bench import flame_picture
from uccl_ep.tools.bench.options import BenchOptions

PROFILE = {"name": "now", "stacks": {"throughput_combine;reduce": 3.0, "throughput_combine": 1.0, "run;futex": 0.5}}


def test_flame_picture_calls_add_up() -> None:
    root = flame_picture.tree_of(PROFILE)
    assert (root.name, root.ms, root.depth) == ("now", 4.5, 3)
    combine = root.callees["throughput_combine"]
    assert (combine.ms, combine.callees["reduce"].ms) == (4.0, 3.0)
    assert root.callees["run"].callees["futex"].depth == 1


def test_flame_picture_colours_say_what_a_function_does() -> None:
    names = ("reduce_whole", "__memmove_avx512", "__sched_yield", "page fault", "throughput_dispatch", "run")
    kinds = [flame_picture.kind_of(name) for name in names]
    assert kinds == ["kernel", "copy", "wait", "system", "kernel", "other"]


def test_flame_picture_of_two_profiles(tmp_path: Path) -> None:
    options = vars(BenchOptions())
    before = {"name": "before", "stacks": {";".join("abcdefghijklmnop"): 20.0}}  # deeper than is drawn
    flame_picture.draw({"options": options, "profiles": [before, PROFILE]}, tmp_path / "two.png")
    assert (tmp_path / "two.png").read_bytes().startswith(b"\x89PNG")
