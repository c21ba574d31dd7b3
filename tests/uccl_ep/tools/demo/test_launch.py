"""The launcher: which rank is blamed, and what remains of the agent's grip on signals and logs."""

from __future__ import annotations

import json
import logging
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from uccl_ep.tools.demo.launch import first_failure, quiet_agent
from uccl_ep.tools.demo.worker import error_file


@dataclass
class Failure:
    exitcode: int


def tell(job: Path, rank: int, time: float, text: str) -> None:
    details = {"time": time, "kind": "PeerLost", "text": text, "trace": f"trace of {rank}"}
    error_file(job, rank).write_text(json.dumps(details))


def test_the_first_to_fail_is_named_not_the_lowest(tmp_path: Path) -> None:
    tell(tmp_path, 0, 20.0, "rank 2 lost in combine")
    tell(tmp_path, 2, 10.0, "disk full")
    error = first_failure(tmp_path, {0: Failure(1), 2: Failure(1), 3: Failure(-signal.SIGTERM)})
    assert str(error) == "rank 2: PeerLost: disk full"
    assert error.trace == "trace of 2"


def test_a_rank_that_crashed_explains_the_others(tmp_path: Path) -> None:
    tell(tmp_path, 0, 10.0, "rank 1 lost in dispatch")
    logs = tmp_path / "logs" / "run" / "attempt_0" / "1"
    logs.mkdir(parents=True)
    (logs / "stderr.log").write_text("Fatal Python error: Segmentation fault")
    error = first_failure(tmp_path, {0: Failure(1), 1: Failure(-signal.SIGSEGV)})
    assert str(error) == "rank 1 was killed by SIGSEGV and left no message"
    assert "Segmentation fault" in error.trace


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_ranks_ended_by_the_agent_are_not_blamed(tmp_path: Path, number: signal.Signals) -> None:
    tell(tmp_path, 3, 10.0, "no route")
    error = first_failure(tmp_path, {0: Failure(-number), 3: Failure(1)})
    assert str(error).startswith("rank 3: ")


def test_a_rank_killed_for_memory_is_named_when_nobody_said_a_word(tmp_path: Path) -> None:
    error = first_failure(tmp_path, {0: Failure(-signal.SIGTERM), 2: Failure(-signal.SIGKILL)})
    assert str(error) == "rank 2 was killed by SIGKILL and left no message"


def test_an_exit_status_is_told_and_a_torn_message_skipped(tmp_path: Path) -> None:
    error_file(tmp_path, 1).write_text('{"time": 1')
    assert "rank 0 ended with exit status 3" in str(first_failure(tmp_path, {0: Failure(3), 1: Failure(1)}))


def test_signals_and_logs_are_given_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyError), quiet_agent():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert not logging.getLogger("torch.distributed.elastic").isEnabledFor(logging.ERROR)
        raise KeyError
    assert signal.getsignal(signal.SIGTERM) is before
    assert logging.getLogger("any").isEnabledFor(logging.ERROR)
