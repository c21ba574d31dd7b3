"""The instructions of the row copies that a program can choose from, in PTX, and that a program can choose them.

Needs no GPU: NVRTC; skipped where there is none.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from uccl_ep.errors import UcclEpError
from uccl_ep.gpu.compiler import RuntimeCompiler

ROOT = Path(__file__).resolve().parents[3]
PROBES = '#include "tests/kernels/device/copy_probes.h"\n'
KERNEL = '#include "kernels/low_latency/dispatch_recv.h"\n'

pytestmark = pytest.mark.timeout(120)


def ptx(source: str, arch: str) -> str:
    try:
        compiler = RuntimeCompiler()
    except UcclEpError as error:
        pytest.skip(str(error))
    return bytes(compiler.compile(source, "copies", arch.replace("sm_", "compute_"), ROOT).binary).decode()


def body(text: str, kernel: str) -> str:
    """One kernel's instructions."""
    found = re.search(rf"\.entry {kernel}\(.*?\n\}}\n", text, re.DOTALL)
    assert found is not None, kernel
    return found[0]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_copy_bulk_plain_copies_know_no_hint_and_no_engine(arch: str) -> None:
    plain = body(ptx(PROBES, arch), "copy_rows_plain")
    assert "ld.global.L1::no_allocate.v2.u64" in plain and "st.global.L1::no_allocate.v2.u64" in plain
    assert not re.search("cp.async|cache_hint|mbarrier", plain)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_copy_bulk_hinted_loads_name_the_policy(arch: str) -> None:
    hinted = body(ptx(PROBES, arch), "copy_rows_hinted")
    assert hinted.count("createpolicy.fractional.L2::evict_first.b64") >= 1
    loads = re.findall(r"ld\.global[^\n]*v2\.u64[^\n]*", hinted)
    assert len(loads) >= 9  # eight in flight, and the rest of a row
    assert all("L2::cache_hint.L2::256B" in load for load in loads)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_copy_bulk_order_of_the_engines_instructions(arch: str) -> None:
    bulk = body(ptx(PROBES, arch), "copy_rows_bulk")
    first = {
        name: bulk.index(name)
        for name in (
            "mbarrier.init",
            "fence.proxy.async;",
            "mbarrier.arrive.expect_tx",
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes",
            "mbarrier.try_wait.parity",
            "cp.async.bulk.global.shared::cta.bulk_group",
        )
    }
    assert list(first.values()) == sorted(first.values()), first
    stores = bulk.rindex("cp.async.bulk.global.shared::cta.bulk_group")
    assert bulk.index("cp.async.bulk.commit_group") > first["cp.async.bulk.global.shared::cta.bulk_group"]
    complete = bulk.index("cp.async.bulk.wait_group 0")  # not .read: the row is to be released after it
    assert stores < bulk.rindex("cp.async.bulk.commit_group") < complete < bulk.index("mbarrier.inval")
    assert "cp.async.bulk.wait_group.read 0" in bulk  # before a stage is filled again


def test_copy_bulk_is_the_plain_copy_where_there_is_no_engine() -> None:
    assert "cp.async" not in body(ptx(PROBES, "sm_80"), "copy_rows_bulk")


@pytest.mark.parametrize("chosen", ["lanes", "hinted", "bulk"])
def test_copy_bulk_a_program_chooses_by_a_definition(chosen: str) -> None:
    text = ptx(f"#define UCCL_COPY_ROWS {chosen}\n{KERNEL}", "sm_90a")
    assert ("cp.async.bulk" in text) == (chosen == "bulk")
    assert ("createpolicy" in text) == (chosen == "hinted")
    assert ptx(KERNEL, "sm_90a").count("cp.async") == ptx(KERNEL, "sm_90a").count("createpolicy") == 0
