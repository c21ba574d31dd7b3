"""uccl_ep.examples.launch.torchrun_elastic: checkpoints, and a host that goes off in mid-training."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.launchers import hosts
from tests.launchers.hosts import Hosts
from uccl_ep import Buffer
from uccl_ep.examples.launch import step, torchrun_elastic
from uccl_ep.examples.launch.torchrun_elastic import load, save, train
from uccl_ep.group.thread_group import ThreadGroup, run_ranks

LINE = re.compile(r"step (\d+) by (\d+) ranks on (\d+) node\(s\), from step (\d+)")


def test_examples_launch_elastic_checkpoint_is_whole_or_the_older_one(tmp_path: Path) -> None:
    checkpoint = tmp_path / "step.txt"
    assert load(checkpoint) == 0
    save(checkpoint, 50)
    (tmp_path / "step.txt.draft").write_text("6")  # killed while it wrote "60"
    assert load(checkpoint) == 50
    save(checkpoint, 60)
    assert load(checkpoint) == 60 and [p.name for p in tmp_path.iterdir()] == ["step.txt"]


def test_examples_launch_elastic_goes_on_where_the_checkpoint_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds: list[int] = []

    def noted(buffer: Buffer, seed: int) -> step.Seen:
        seeds.append(seed)
        return step.exchange(buffer, seed)

    monkeypatch.setattr(torchrun_elastic, "exchange", noted)
    checkpoint = tmp_path / "step.txt"

    def body(group: ThreadGroup) -> None:
        train(group, 5, 2, checkpoint)  # type: ignore[arg-type]  # whatever Buffer takes

    run_ranks(1, body)
    assert load(checkpoint) == 4 and seeds == [0, 1, 2, 3, 4]
    run_ranks(1, body)
    assert seeds[5:] == [4]
    assert "step 4 by 1 ranks on 1 node(s), from step 0" in capsys.readouterr().out


def test_examples_launch_elastic_refuses_one_store_for_all_lives() -> None:
    torchrun_elastic.require_fresh_stores({})
    torchrun_elastic.require_fresh_stores({"TORCHELASTIC_USE_AGENT_STORE": "False"})
    with pytest.raises(SystemExit, match="TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 on every host"):
        torchrun_elastic.require_fresh_stores({"TORCHELASTIC_USE_AGENT_STORE": "True"})


def progress(agent: subprocess.Popen[str]) -> tuple[int, ...]:
    """The next line of progress: (step, ranks, nodes, first step of this life)."""
    assert agent.stdout is not None
    seen = []
    for line in agent.stdout:
        seen.append(line)
        if found := LINE.search(line):
            return tuple(map(int, found.groups()))
    raise AssertionError("the agent ended\n" + "".join(seen))


@pytest.mark.slow  # two lives of four ranks that import torch
@pytest.mark.timeout(500)
def test_examples_launch_elastic_survives_a_host_that_goes_off(tmp_path: Path) -> None:
    hosts.require()
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-id", "job", "--rdzv-conf", "last_call_timeout=1"]
    with Hosts(2) as pair:
        words = ["--nnodes", "1:2", "--nproc-per-node", "2", "--max-restarts", "3", *rendezvous]
        words += ["--rdzv-endpoint", f"{pair.name(0)}:29400", "-m", "uccl_ep.examples.launch.torchrun_elastic"]
        words += ["--checkpoint", str(tmp_path / "step.txt"), "--steps", str(10**9), "--every", "20"]
        fresh = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        agents = [pair.module(host, "torch.distributed.run", *words, **fresh) for host in range(2)]
        last, ranks, nodes, first = progress(agents[0])
        assert (ranks, nodes, first) == (4, 2, 0)
        pair.power_off(1)
        while ranks == 4:
            before, (last, ranks, nodes, first) = last, progress(agents[0])
        assert (ranks, nodes) == (2, 1)
        assert before <= first < last, "they go on where the last checkpoint is"
