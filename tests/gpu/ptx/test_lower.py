"""Reading and lowering PTX: scopes of registers, source lines, slots, and what is refused."""

from __future__ import annotations

import re

import pytest

from tests.gpu.ptx.lower import lower
from tests.gpu.ptx.read import Kernel, read

HEAD = ".visible .entry k(\n\t.param .align 8 .b8 k_param_0[16]\n)\n{\n"
FILES = '.file 1 "/a/kernels/low_latency/common.h"\n.file 2 "/a/kernels/device/simt.h"\n'


def kernel(body: str) -> Kernel:
    return read(f"{HEAD}{body}\n\n}}\n{FILES}")[0]


def lines(body: str) -> list[list[str]]:
    """The machine's lines, in columns."""
    text = lower(kernel(body)).splitlines()
    return [line.split("\t") for line in text if not line.startswith(("kernel ", "place "))]


def test_lower_a_register_of_an_inner_scope_hides_the_outer_one() -> None:
    body = """.reg .pred %p<3>;
    setp.eq.s32 %p1, %r1, 0;
    {
    .reg .pred %p1;
    setp.ne.u32 %p1, %r2, 0;
    @%p1 bra $L1;
    }
    @%p1 bra $L1;
    $L1:
    ret;"""
    predicates = [i.predicate for i in kernel(body).instructions if i.name == "bra"]
    assert predicates[0] != predicates[1] == "%p1"
    inner, outer = (row[1] for row in lines(body) if row[0] == "bra")
    assert inner != outer


def test_lower_places_name_the_caller_of_what_was_inlined() -> None:
    places = kernel(
        ".loc 1 7 3\nadd.s32 %r1, %r2, 1;\n.loc 2 9 1, function_name $L_i, inlined_at 1 8 3\nadd.s32 %r1, %r2, 1;\nret;"
    )
    assert [places.places[i.place] for i in places.instructions[:2]] == [
        "low_latency/common.h:7",
        "device/simt.h:9 < low_latency/common.h:8",
    ]


def test_lower_slots_are_shared_by_registers_that_do_not_live_together() -> None:
    chain = "\n".join(f"add.s32 %r{n + 1}, %r{n}, 1;" for n in range(1, 100)) + "\nst.global.u32 [%rd1], %r100;\nret;"
    slots = {name for row in lines(chain) for name in re.findall(r"r\d+", row[2] + row[3])}
    assert len(slots) <= 3


def test_lower_a_register_lives_through_the_loop_that_reads_it() -> None:
    body = """mov.u32 %r1, 5;
    mov.u32 %r2, 0;
    $L1:
    add.s32 %r2, %r2, %r1;
    mov.u32 %r3, 7;
    setp.lt.u32 %p1, %r2, %r3;
    @%p1 bra $L1;
    st.global.u32 [%rd1], %r2;
    ret;"""
    rows = lines(body)
    limit, step = rows[0][2], next(row[2] for row in rows if row[3] == "=7")
    assert limit != step


def test_lower_a_predicated_move_keeps_what_was_there() -> None:
    body = """mov.u32 %r1, 5;
    mov.u32 %r9, 1;
    @%p1 mov.u32 %r1, 6;
    st.global.v2.u32 [%rd1], {%r1, %r9};
    ret;"""
    rows = lines(body)
    assert rows[0][2] == rows[2][2] != rows[1][2]


@pytest.mark.parametrize(
    ("instruction", "said"),
    [
        ("ld.volatile.global.u32 %r1, [%rd1];", "ld.volatile.global.u32"),
        ("bar.sync 1;", "bar.sync"),
        ("atom.exch.relaxed.gpu.global.b32 %r1, [%rd1], %r2;", "atom.exch"),
        ("cp.async.bulk.commit_group;", "cp.async.bulk.commit_group"),
        ("shfl.sync.up.b32 %r1|%p1, %r2, %r3, %r4, -1;", "shfl.sync.up"),
    ],
)
def test_lower_refuses_what_the_machine_has_no_operation_for(instruction: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"k: no operation for {said}")):
        lower(kernel(f"{instruction}\nret;"))


def test_lower_memory_says_space_width_order_and_scope() -> None:
    rows = lines(
        "ld.acquire.sys.global.u64 %rd2, [%rd1+8];\nst.release.gpu.u32 [%rd1], %r1;\nld.global.s32 %rd3, [%rd1];\nret;"
    )
    assert [row[5] for row in rows[:3]] == ["2 8 1 0 2 3", "3 4 1 0 3 2", "2 4 1 8 0 0"]
    assert rows[0][4] == "8"
