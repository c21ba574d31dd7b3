"""A whole small measurement (which also runs worker.py and both forms of a peer), and what is refused before it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from uccl_ep.errors import UcclEpError
from uccl_ep.tools.bench import run
from uccl_ep.tools.bench.collectives import openmpi_absence
from uccl_ep.tools.bench.options import BenchOptions
from uccl_ep.tools.bench.run import available, check_memory, run_bench

SMALL = BenchOptions(
    ranks=2,
    ranks_per_node=1,
    tokens=16,
    hidden=128,
    topk=2,
    experts=4,
    rounds=2,
    transport="tcp",
    peers=("gloo",),
)


@pytest.mark.slow
@pytest.mark.timeout(300)  # starts processes that load torch
@pytest.mark.parametrize(
    ("mode", "combine"), [("throughput", "auto"), ("low-latency", "direct"), ("low-latency", "node")]
)
def test_bench_measures_checks_and_writes_json(mode: str, combine: str, tmp_path: Path) -> None:
    options = BenchOptions(**{**vars(SMALL), "mode": mode, "combine": combine})
    text = io.StringIO()
    out = tmp_path / "results" / "one.json"
    result = run_bench(options, out, False, Console(file=text, width=200))
    assert json.loads(out.read_text()) == result
    assert result["paths"] == ["load/store", "tcp"] and result["proxy_writes"] > 0 and result["proxy_bytes"] > 0
    assert set(result["forms"]["tried_s"]["gloo"]) == {"once per rank", "once per expert"}
    assert result["pairs"]["gloo"]["both"]["pairs"] == 2 and result["targets"] == []
    assert len(result["sides"]["uccl_ep"]["ranks"]) == 2 and result["limit"]["memcpy_bytes_per_s"] > 0
    assert result["machine"]["loaded"]["native module"].startswith("sha256 ")
    assert result["limit"]["sockets"]["socket_ms"]["both"] > 0 and "bare sockets and memcpy" in text.getvalue()
    assert "uccl_ep faster by" in text.getvalue()
    if mode == "throughput":
        assert result["combine"] is None
    else:
        assert result["combine"]["form"] == combine and f"our combine is {combine}: UCCL_EP_" in text.getvalue()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(bool(openmpi_absence()), reason=openmpi_absence())
@pytest.mark.parametrize("ranks_per_node", [1, 2])
def test_bench_measures_beside_openmpi(ranks_per_node: int) -> None:
    options = BenchOptions(**{**vars(SMALL), "ranks_per_node": ranks_per_node, "peers": ("gloo", "openmpi")})
    result = run_bench(options, None, True, Console(file=io.StringIO()))
    assert set(result["pairs"]) == {"gloo", "openmpi"} and result["absent"] == {}
    assert result["machine"]["loaded"]["mpi"].startswith("Open MPI")


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_bench_reports_the_rank_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCCL_EP_PROXY_THREADS", "many")
    with pytest.raises(UcclEpError, match="rank [01]: .*UCCL_EP_PROXY_THREADS"):
        run_bench(SMALL, None, False, Console(file=io.StringIO()))


def test_bench_says_which_peer_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "openmpi_absence", lambda: "mpi4py is not installed")
    both = BenchOptions(peers=("gloo", "openmpi"))
    options, absent = available(both)
    assert options.peers == ("gloo",) and absent == {"openmpi": "mpi4py is not installed"}
    assert available(SMALL) == (SMALL, {})
    text = io.StringIO()
    with pytest.raises(UcclEpError, match="mpi4py is not installed"):
        run_bench(BenchOptions(peers=("openmpi",)), None, False, Console(file=text))
    assert "openmpi is not measured" in text.getvalue()


def test_bench_refuses_more_than_the_memory_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    check_memory(SMALL)
    monkeypatch.setattr(run, "needed_bytes", lambda options: 1 << 60)
    with pytest.raises(UcclEpError, match="GB are free: fewer --ranks"):
        check_memory(SMALL)
