"""What the kernels' machine code says about memory: orders, scopes and widths that no test on a CPU can see.

From NVRTC's PTX and from AMD assembly, on a machine with neither GPU.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.kernels.ptx import ROOT, Instruction, amd, amd_kernels, kernels, misaddressed, programs, ptx
from uccl_ep.gpu.compiler import Program

pytestmark = [pytest.mark.compile, pytest.mark.timeout(120)]

NVIDIA = ("compute_80", "compute_90a", "compute_100a")
AMD = ("gfx942", "gfx950")
COMMAND = "st.release.sys.global.b128"
_ORDERED = ("st.release", "st.relaxed", "ld.acquire", "ld.relaxed")
# Every instruction with a scope that a kernel may have. CPUs, NICs and peers see `sys`; `gpu` is for words that only
# this device's blocks read; `cta` for those of one block's lanes (without .global, since they are in shared memory).
SEEN_ELSEWHERE = {
    COMMAND,
    *(f"{op}.sys.global.u{width}" for op in _ORDERED for width in (32, 64)),
    *(f"atom.add.{order}.sys.global.u64" for order in ("relaxed", "release")),
    "atom.cas.acq_rel.sys.global.b32",
}
ON_THIS_DEVICE = re.compile(
    r"(ld\.(acquire|relaxed)|st\.(release|relaxed)|atom\.add\.(relaxed|acq_rel))\.gpu(\.global)?\.u(32|64)"
)
IN_ONE_BLOCK = re.compile(r"(ld\.acquire|st\.release)\.cta\.u32|atom\.add\.relaxed\.cta\.global\.u32")
# What *_gpu functions are called with, and why no CPU ever reads it while a kernel runs.
GPU_SCOPE_WORDS = {
    r"ring\.(head|cached_tail|cached_done)": "producers only",
    r"counter": "the grid barrier's",
    r"at": "a DeviceWord's, of which each use is looked at",
    r"static_cast<const u32\*>\(counter\)": "the grid barrier's",
    r"(call\.)?admitted": "blocks of one launch",
    r"arrivals": "blocks of one launch",
    r"compared": "blocks of one launch",
    r"ticket": "blocks of one launch",
    r"&a\.(num_writes|sizes)\[\w+\]": "blocks of one launch",
    r"&(c\.findings->)?first\.part": "the block of one launch; the host gets a copy (check.h)",
    r"(a|call)\.epoch( \+ 1)?": "kernels of one rank",
    r"&(p|s|epochs_of\(\w+, \w+\)|call)[.\w>-]*": "the rank's epochs",
    r"(&)?c\.peer_stats\[.*": "the host reads sums after the kernel",
    r"&a\.num_tokens_per_\w+\[\w+\]": "the host reads counts after the kernel",
    r"(&)?a\.(geometry|settled|last)[\w.\[\]]*": "kernels of one rank",
}
# Likewise of *_cta functions, and why no other block reads it.
CTA_SCOPE_WORDS = {
    r"(&shared\.failed|&(s\.merge|m)\.bad)": "shared memory of one block",
    r"told|&t\.words->(told|done)\[.*": "words of a team, in shared memory of one block",
    r"at": "BlockWord's, of which each is looked at here",
    r"&c\.by_\w+\(\)\[\w+\]": "sums of the kernel's only block (check.h)",
}
PUSHES = ("low_latency_dispatch_send", "low_latency_combine_send", "throughput_dispatch", "throughput_combine")
ONE_PUSH = """#include "kernels/device/ring_push.h"
namespace uccl {
KERNEL one_push(RingView ring, Command command, simt::WaitContext context) {
  if (simt::lane() == 0) push(ring, command, context);
}
KERNEL one_group(RingView ring, Command command, simt::WaitContext context) {
  push_group(ring, command, true, context);
}
}
"""


def source(program: Program) -> str:
    return f'#include "{program.header}"\n'


@pytest.fixture(scope="module")
def counted(request: pytest.FixtureRequest) -> Iterator[dict[tuple[str, str], Counter[str]]]:
    """Scoped instructions by kernel and processor; printed when the last test has run."""
    found: dict[tuple[str, str], Counter[str]] = {}
    yield found
    heads = ("command", "release.sys", "acquire.sys", "release.gpu", "acquire.gpu", "atom.sys", "atom.gpu")
    lines = [f"{'kernel':32}{'processor':14}" + "".join(f"{head:>13}" for head in heads)]
    for (name, arch), count in sorted(found.items()):
        lines.append(f"{name:32}{arch:14}" + "".join(f"{_of(head, count):13}" for head in heads))
    with request.config.pluginmanager.get_plugin("capturemanager").global_and_fixture_disabled():
        print("\n" + "\n".join(lines))


def _of(head: str, count: Counter[str]) -> int:
    if head == "command":
        return count[COMMAND]
    first, scope = head.split(".")
    return sum(n for name, n in count.items() if first in name and f".{scope}" in name and name != COMMAND)


@pytest.mark.parametrize("arch", NVIDIA)
@pytest.mark.parametrize("program", programs(), ids=lambda p: p.header)
def test_ptx_orders_and_scopes_are_the_intended_ones(
    program: Program, arch: str, counted: dict[tuple[str, str], Counter[str]]
) -> None:
    found = kernels(ptx(source(program), arch))
    assert sorted(found) == sorted(program.kernels)
    for name, instructions in found.items():
        scoped = Counter(i.name for i in instructions if i.orders)
        counted[name, arch] = scoped
        narrow = (ON_THIS_DEVICE, IN_ONE_BLOCK)
        strange = {i for i in scoped if i not in SEEN_ELSEWHERE and not any(n.fullmatch(i) for n in narrow)}
        assert not strange, f"{name}, {arch}: {strange}"
        names = {i.name for i in instructions}
        fences = {n for n in names if n.startswith(("fence", "membar"))}
        assert not fences, f"{name}, {arch}: {fences}, which ThreadSanitizer does not model"
        assert not {n for n in names if ".volatile" in n}, f"{name}, {arch}: volatile orders nothing"
        assert not {n for n in names if n.startswith("ld.global.nc")}, f"{name}, {arch}: rows arrive while kernels run"


@pytest.mark.parametrize("arch", NVIDIA)
@pytest.mark.parametrize("program", programs(), ids=lambda p: p.header)
def test_ptx_global_instructions_have_global_addresses(program: Program, arch: str) -> None:
    for name, instructions in kernels(ptx(source(program), arch)).items():
        wrong = misaddressed(instructions)
        assert not wrong, f"{name}, {arch}: shared memory is addressed as global, which faults: {wrong}"


@pytest.mark.parametrize("arch", NVIDIA)
def test_ptx_commands_are_one_16_byte_release_to_the_system(arch: str) -> None:
    pushed = kernels(ptx(ONE_PUSH, arch))
    for name in ("one_push", "one_group"):
        wide = [
            i
            for i in pushed[name]
            if i.name.startswith(("st.", "atom.", "red.")) and re.search(r"b128|\.v[24]\.", i.name)
        ]
        assert [i.name for i in wide] == [COMMAND], f"{name}, {arch}"
        tails = [i.name for i in pushed[name] if i.name.startswith("ld.acquire.sys")]
        assert "ld.acquire.sys.global.u64" in tails, f"{name}, {arch}: the consumer's tail is acquired from the system"
    for program in programs():
        for name, instructions in kernels(ptx(source(program), arch)).items():
            commands = sum(i.name == COMMAND for i in instructions)
            assert commands > 0 or name not in PUSHES, f"{name}, {arch}: no command"
            split = [i for i in instructions if i.orders and i.name.startswith("st.") and ".v" in i.name]
            assert not split, f"{name}, {arch}: 16 bytes in two words may be torn: {split}"


def test_ptx_words_that_cpus_read_have_system_scope() -> None:
    """PTX does not say whose word an address is; the sources do."""
    first = r"((?:[^(),}]|\([^()]*\))+)"
    called = r"(?<!DEV u32 )(?<!DEV u64 )(?<!DEV void )\b(?:st_\w+|ld_\w+|add\w*)_"
    words = {"gpu": GPU_SCOPE_WORDS, "cta": CTA_SCOPE_WORDS}
    calls = {
        "gpu": rf"(?:{called}gpu\(|(?<!struct )\bDeviceWord{{){first}",
        "cta": rf"(?:{called}cta\(|(?<!struct )\bBlockWord{{){first}",
    }
    for scope, call in calls.items():
        seen = 0
        for path in sorted((ROOT / "kernels").rglob("*.h")):
            if path.name.startswith("backend_"):
                continue
            for argument in re.findall(call, path.read_text()):
                seen += 1
                known = any(re.fullmatch(word, argument.strip()) for word in words[scope])
                assert known, f"{path.name}: {argument} has {scope} scope: say in {scope.upper()}_SCOPE_WORDS why"
        assert seen > 3


@pytest.mark.parametrize("arch", AMD)
def test_ptx_on_amd_commands_are_one_16_byte_store_to_the_system(arch: str) -> None:
    for name, instructions in amd_kernels(amd(ONE_PUSH, arch)).items():
        wide = [n for n, i in enumerate(instructions) if i.name == "global_store_dwordx4"]
        assert len(wide) == 1, f"{name}, {arch}"
        assert instructions[wide[0]].operands.endswith("sc0 sc1"), f"{name}, {arch}: {instructions[wide[0]]}"
        before = instructions[max(0, wide[0] - 12) : wide[0]]
        assert Instruction("buffer_wbl2", "sc0 sc1") in before, f"{name}, {arch}: nothing releases to the system"
        written_back = before[before.index(Instruction("buffer_wbl2", "sc0 sc1")) :]
        assert any(i.name == "s_waitcnt" and "vmcnt(0)" in i.operands for i in written_back), f"{name}, {arch}"


@pytest.mark.timeout(300)  # compiles all kernels
@pytest.mark.parametrize("arch", AMD)
def test_ptx_on_amd_flags_are_acquired_from_the_system(arch: str) -> None:
    for program in programs():
        for name, instructions in amd_kernels(amd(source(program), arch)).items():
            loads = [
                n for n, i in enumerate(instructions) if i.name.startswith(("global_load_dword", "flat_load_dword"))
            ]
            acquired = [n for n in loads if "sc0 sc1" in instructions[n].operands]
            followed = [
                any(i.name == "buffer_inv" and i.operands == "sc0 sc1" for i in instructions[n : n + 8])
                for n in acquired
            ]
            if any(word in name for word in ("recv", "dispatch", "combine", "counts", "barrier")):
                assert acquired, f"{name}, {arch}: no load from the system"
                assert any(followed), f"{name}, {arch}: nothing is invalidated after a load from the system"


@pytest.mark.timeout(300)  # compiles all kernels
@pytest.mark.parametrize("arch", ("gfx90a", *AMD))
def test_ptx_on_amd_write_backs_and_barriers_wait_for_stores(arch: str) -> None:
    """What a lane releases for its block is in memory before the flag is. tests/kernels/device/test_backend_hip.py has
    each order by itself."""
    seen: Counter[str] = Counter()
    for program in programs():
        for name, instructions in amd_kernels(amd(source(program), arch)).items():
            for n, i in enumerate(instructions):
                if i.name not in ("buffer_wbl2", "s_barrier"):
                    continue
                seen[i.name] += 1
                near = instructions[:n][:-60:-1] if i.name == "s_barrier" else instructions[n + 1 : n + 60]
                at = next((k for k, j in enumerate(near) if _is_access(j)), len(near))
                waits = [j for j in near[:at] if j.name == "s_waitcnt" and "vmcnt(0)" in j.operands]
                assert waits, f"{name}, {arch}: nothing waits beside instruction {n}, {i}"
    assert all(seen[kind] > 20 for kind in ("buffer_wbl2", "s_barrier")), seen


def _is_access(instruction: Instruction) -> bool:
    return re.match(r"(global|flat|buffer|scratch)_", instruction.name) is not None


def test_ptx_checks_can_fail() -> None:
    wrong = """#include "kernels/device/simt.h"
    struct S { unsigned int word; };
    KERNEL shared_as_global(unsigned int* p) {
      if (uccl::simt::tid() == 0)
        asm volatile("st.release.gpu.global.u32 [%0],%1;" ::"l"(&uccl::simt::smem<S>().word), "r"(1u) : "memory");
      uccl::simt::sync_block();
      *p = uccl::simt::smem<S>().word;
    }
    KERNEL fine(unsigned int* p) { uccl::simt::st_release_sys(p, 3u); }
    """
    found = kernels(ptx(wrong, "compute_90a"))
    assert [i.name for i in misaddressed(found["shared_as_global"])] == ["st.release.gpu.global.u32"]
    assert not misaddressed(found["fine"])
    assert [i.name for i in found["fine"] if i.orders] == ["st.release.sys.global.u32"]
    assert Instruction("st.relaxed.cta.global.u32", "").orders and not Instruction("st.global.u32", "").orders
