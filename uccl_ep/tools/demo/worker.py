# One rank of the expert-parallel run: `python -m uccl_ep.tools.demo.worker JOB_DIRECTORY`, started by launch.py, or
# by torchrun, which set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
from __future__ import annotations

import faulthandler
import json
import os
import socket
import sys
import time
import traceback
from pathlib import Path

from rich.console import Console

from uccl_ep.tools.demo.job import GROUP_TIMEOUT, OPTIONS_FILE, QUIET_FILE, error_file, result_file
from uccl_ep.tools.demo.options import DemoOptions
from uccl_ep.tools.demo.progress import TrainingProgress
from uccl_ep.tools.demo.result import RunResult, train

TEARDOWN_SECONDS = 3


def loopback_interface() -> str | None:
    """Name of the loopback interface, so that gloo need not resolve this host's name."""
    return next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)


def budgets_of(options: DemoOptions) -> tuple[int, int]:
    """As Megatron sizes them: the larger hint of the two configurations, for rows of bf16."""
    from uccl_ep import Buffer

    configs = [Buffer.get_dispatch_config(options.ranks), Buffer.get_combine_config(options.ranks)]
    row_bytes = options.hidden * 2
    return (
        max(config.get_nvl_buffer_size_hint(row_bytes, options.ranks) for config in configs),
        max(config.get_rdma_buffer_size_hint(row_bytes, options.ranks) for config in configs),
    )


def progress_of(options: DemoOptions, rank: int, show: bool) -> TrainingProgress:
    """What the lowest rank that sees the end shows."""
    title = f"expert parallel, {options.ranks} ranks on {options.nodes} nodes"
    console = Console() if show and rank == options.survivors[0] else None
    return TrainingProgress(title, options.steps, options.tokens_per_step, console)


def run_survivor(options: DemoOptions, rank: int, show: bool) -> RunResult:
    """As run_rank, in a run with --kill."""
    from uccl_ep.tools.demo.survive import make_trainer

    trainer, buffer = make_trainer(options, rank, budgets_of(options))
    result = train(trainer, options.steps, progress_of(options, rank, show))
    result.stats, result.interruptions = buffer.stats(), trainer.interruptions
    buffer.destroy()
    return result


def run_rank(options: DemoOptions, rank: int, show: bool) -> RunResult:
    """Trains this rank's share; torch.distributed must find its environment variables."""
    import torch
    from torch import Tensor, distributed

    from uccl_ep import Buffer
    from uccl_ep.tools.demo.corpus import load_corpus
    from uccl_ep.tools.demo.expert_parallel import ExpertParallel
    from uccl_ep.tools.demo.trainer import Trainer

    torch.set_num_threads(1)  # ranks outnumber the cores; and the one-process run then adds in the same order
    distributed.init_process_group("gloo", timeout=GROUP_TIMEOUT)
    group = distributed.group.WORLD
    buffer = Buffer(group, *budgets_of(options), explicitly_destroy=True, device="cpu")

    def sum_over_ranks(values: Tensor) -> None:
        distributed.all_reduce(values)

    exchange = ExpertParallel(buffer, options.experts, options.fp8)
    trainer = Trainer(options, load_corpus(), [rank], exchange, sum_over_ranks)
    result = train(trainer, options.steps, progress_of(options, rank, show))
    result.stats = buffer.stats()
    buffer.destroy()
    distributed.destroy_process_group()
    return result


def main(job: Path) -> int:
    rank = int(os.environ["RANK"])
    options = DemoOptions.load(job / OPTIONS_FILE)
    os.environ.update(options.environment())
    interface = loopback_interface()
    if interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    try:
        run = run_survivor if options.kill else run_rank
        run(options, rank, show=not (job / QUIET_FILE).exists()).save(result_file(job, rank))
    except Exception as error:  # every failure ends here on purpose: it becomes one line in the launcher
        details = {"time": time.time(), "kind": type(error).__name__, "text": str(error)}
        details["trace"] = traceback.format_exc()
        error_file(job, rank).write_text(json.dumps(details), encoding="utf-8")
        # The launcher ends the other ranks once this one has gone, so its own teardown, which may wait for them, gets
        # a deadline.
        faulthandler.dump_traceback_later(TEARDOWN_SECONDS, exit=True)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
