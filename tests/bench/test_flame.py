"""Profiles: what perf says becomes stacks of our functions; trees that cannot be profiled are refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import flame
from tests.uccl_ep.proxies import eventually
from uccl_ep.membership.root_cause import has_ended

SCRIPT = """
    7f01 clear_page_erms ([kernel.kallsyms])
    7f02 exc_page_fault ([kernel.kallsyms])
    7f03 asm_exc_page_fault ([kernel.kallsyms])
    7f04 uccl::simt::host::(anonymous namespace)::reduce_whole(unsigned short*, float const*) (/x/_native.abi3.so)
    7f05 uccl::throughput_combine(uccl::CombineArgs) (/x/_native.abi3.so)
    7f06 std::_Function_handler<void (), uccl::launch<int>(int)::{lambda()#1}>::_M_invoke (/x/_native.abi3.so)
    7f07 _PyEval_EvalFrameDefault (/usr/lib/libpython3.so)

    7f01 __memmove_avx512_unaligned_erms (/usr/lib/libc.so.6)
    7f05 uccl::throughput_combine(uccl::CombineArgs) (/x/_native.abi3.so)

    7f08 at::native::add (/x/libtorch_cpu.so)
"""


def test_flame_stacks_are_of_our_functions_down_to_the_system() -> None:
    samples = list(flame.read_script(SCRIPT.splitlines()))
    assert [len(sample) for sample in samples] == [7, 2, 1]
    assert samples[0][0] == ("_PyEval_EvalFrameDefault", "/usr/lib/libpython3.so")  # the outermost
    profile = flame.fold([*samples, samples[1]], 0.5, "now")
    assert profile.stacks == {
        ("throughput_combine", "reduce_whole", "page fault"): 0.5,
        ("throughput_combine", "__memmove_avx512_unaligned_erms"): 1.0,
    }
    assert profile.as_json() == {
        "name": "now",
        "ms_per_round": 1.5,
        "stacks": {"throughput_combine;__memmove_avx512_unaligned_erms": 1.0,
                   "throughput_combine;reduce_whole;page fault": 0.5},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("uccl::throughput_dispatch(uccl::DispatchArgs)", "throughput_dispatch"),
        ("void uccl::(anonymous namespace)::copy<float, 3>(float*)", "copy"),
        ("[unknown]", "[unknown]"),
        ("entry_SYSCALL_64_after_hwframe", "entry_SYSCALL_64_after_hwframe"),
    ],
)
def test_flame_names_are_short(name: str, wanted: str) -> None:
    assert flame.short(name) == wanted


def test_flame_repeated_frames_count_once() -> None:
    frames = [("f", "_native.so")] * 3 + [("g", "_native.so")]
    assert flame.fold([frames], 1.0, "x").stacks == {("f", "g"): 1.0}


def test_flame_a_tree_that_strips_its_module_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cmake").mkdir()
    (tmp_path / "cmake" / "python_module.cmake").write_text("nanobind_add_module(_native)", encoding="utf-8")
    with pytest.raises(RuntimeError, match="strips its module.*NOSTRIP"):
        flame.build(tmp_path, tmp_path / "out")


def test_flame_says_why_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flame.shutil, "which", lambda name: None)
    assert flame.perf_absence().startswith("NOT RUN: perf is not installed")


def test_flame_this_tree_keeps_symbols_when_asked() -> None:
    assert "UCCL_EP_SYMBOLS" in (flame.ROOT / "cmake" / "python_module.cmake").read_text(encoding="utf-8")


def test_flame_what_hangs_ends_with_all_below_it(tmp_path: Path) -> None:
    code = "import os, subprocess, sys; open(sys.argv[1], 'w').write(str(subprocess.Popen(['sleep', '300']).pid));"
    code += "import time; time.sleep(300)"
    with pytest.raises(subprocess.TimeoutExpired):
        flame.run_with_all_below([sys.executable, "-c", code, str(tmp_path / "below")], dict(os.environ), 3.0)
    below = int((tmp_path / "below").read_text())
    assert eventually(lambda: has_ended(below))
