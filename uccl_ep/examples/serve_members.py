"""A server whose ranks die, are replaced, join, leave and sleep, while it goes on making the same tokens.

    python -m uccl_ep.examples.serve_members [--steps 12]

Six processes serve greedy tokens by a small mixture of experts, of which each expert has two replicas on different
ranks. One process kills itself in the middle of a step; the others mask it by agreement and do that step once more, by
the other replicas. It is replaced, two more join, one leaves, and all sleep and wake up. Every token is compared with
those of one process that nothing happens to, and a table says how long whom stood still.

To copy: `Replicated`, which places replicas, and `Server.step` and `Server.change`, a server's loop.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import TCPStore

from uccl_ep import Buffer
from uccl_ep.examples.expert_parallel import ExpertParallel
from uccl_ep.examples.small_moe import EXPERTS, HIDDEN, LENGTH, REQUESTS, Model, Text, undisturbed
from uccl_ep.group.store_group import StoreGroup

REPLICAS, DIES, LEAVES = 2, 2, 3  # of each expert; seats
GROUPS: dict[str, tuple[int, ...]] = {
    "first": (0, 1, 2, 3, 4, 5),
    "replaced": (0, 1, 2, 3, 4, 5),
    "grown": (*range(8),),
    "smaller": tuple(seat for seat in range(8) if seat != LEAVES),
}
"""The seats of each group by rank. A seat is a place in the server: its rank may change."""
USUAL, FIRST, DEATH, SLEEP = "as usual", "a process's first step", "a rank dies and is masked", "all sleep and wake up"
CHANGES = {"replaced": "it is replaced", "grown": "two join", "smaller": "one leaves"}


# ---- a rank --------------------------------------------------------------------------------------------------------


class Replicated(nn.Module):
    """Takes the place of a layer's experts: replicas over ranks, and every row goes to one that lives.

    Slot p holds expert p modulo EXPERTS, and a rank has consecutive slots, fewer than EXPERTS: no two of one expert.
    """

    def __init__(self, experts: nn.Module) -> None:
        super().__init__()
        self.experts = experts

    @staticmethod
    def slots(ranks: int) -> int:
        return -(-REPLICAS * EXPERTS // ranks) * ranks

    def place(self, buffer: Buffer, masked: Sequence[int]) -> None:
        """From now on for these members, without those that are masked."""
        slots = self.slots(buffer.group_size)
        share = slots // buffer.group_size
        lives = [[p for p in range(e, slots, EXPERTS) if p // share not in masked] for e in range(EXPERTS)]
        self.route = torch.tensor([replicas[buffer.rank % len(replicas)] for replicas in lives])
        mine = torch.arange(buffer.rank * share, (buffer.rank + 1) * share) % EXPERTS
        self.parallel = ExpertParallel(lambda x, ids, w: self.experts(x, mine[ids], w), buffer, slots, 1)
        self.parallel.mode = "low_latency"

    def forward(self, rows: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        results: Tensor = self.parallel(rows, self.route[ids], weights)
        return results


@dataclass
class Report:
    """What a rank tells: texts it has finished; per step (what happens, seconds, of them in switch_members); seconds in
    prepare_members by change, which count as the last step's; bytes of memory by moment."""

    seat: int
    texts: list[tuple[int, list[int]]] = field(default_factory=list)
    steps: list[tuple[str, float, float]] = field(default_factory=list)
    prepared: dict[str, float] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)


class Server:
    """One rank's process. `group` names the first group that it is a member of."""

    def __init__(self, port: int, seat: int, group: str, steps: int, tell: Connection) -> None:
        torch.set_num_threads(1)
        self.port, self.seat, self.count, self.tell = port, seat, steps, tell
        self.store, self.report, self.masked = self.connect(), Report(seat), list[int]()
        self.model = Model()
        self.layers = [Replicated(layer.experts) for layer in self.model.layers]
        for layer, experts in zip(self.model.layers, self.layers, strict=True):
            layer.experts = experts
        ranks, key = len(GROUPS[group]), f"request of seat {seat}"
        self.text = Text(int(self.store.get(key)) if self.store.check([key]) else seat % REQUESTS)
        self.buffer = Buffer(
            self.group(group), 0, self.size(ranks), low_latency_mode=True, enable_shrink=True, explicitly_destroy=True
        )
        self.place([])

    def connect(self) -> Any:
        return TCPStore("127.0.0.1", self.port, timeout=timedelta(seconds=60))

    def group(self, name: str) -> StoreGroup | None:
        seats = GROUPS[name]
        if self.seat not in seats:
            return None
        return StoreGroup(self.connect(), seats.index(self.seat), len(seats))

    @staticmethod
    def size(ranks: int) -> int:
        return Buffer.get_low_latency_rdma_size_hint(1, HIDDEN, ranks, Replicated.slots(ranks))

    def place(self, masked: list[int]) -> None:
        self.masked = masked
        for layer in self.layers:
            layer.place(self.buffer, masked)

    def step(self, what: str) -> bool:
        """Makes a token; whether this rank is of other members now. A step in which a rank was lost is done again."""
        begin = time.monotonic()
        keep = self.text.advance(self.model)
        while (masked := self.buffer.agree_on_masks()) != self.masked:
            what = DEATH
            self.place(masked)
            keep = self.text.advance(self.model)
        keep()
        if len(self.text.tokens) == LENGTH:
            self.report.texts.append((self.text.request, self.text.tokens))
            self.tell.send(("text", self.text.request, self.text.tokens))
            self.text = Text((self.text.request + 1) % REQUESTS)
            self.store.set(f"request of seat {self.seat}", str(self.text.request))
        entered = time.monotonic()
        switched = self.buffer.switch_members()
        end = time.monotonic()
        self.report.steps.append((what, end - begin, end - entered))
        return switched

    def change(self, name: str) -> bool:
        """Goes on while the members of the group `name` are made; whether this rank is one of them."""
        what, group = CHANGES[name], self.group(name)
        self.report.memory[f"before {what}"] = self.buffer.memory_bill().total_bytes
        begin = time.monotonic()
        self.buffer.prepare_members(group, num_rdma_bytes=self.size(len(GROUPS[name])))
        most, prepared = 0, time.monotonic() - begin
        while not self.step(what):
            most = max(most, self.buffer.memory_bill().total_bytes)
        _, seconds, inside = self.report.steps[-1]
        self.report.steps[-1], self.report.prepared[what] = (what, seconds + prepared, inside), prepared
        self.report.memory[f"while {what}"] = most
        if self.seat not in GROUPS[name]:
            return False
        self.report.memory[f"after {what}"] = self.buffer.memory_bill().total_bytes
        self.place([])
        return True

    def some_steps(self) -> None:
        """Which are as many on a rank that has just joined: all call prepare_members() before the same step."""
        for _ in range(self.count):
            self.step(USUAL if self.report.steps else FIRST)

    def serve(self, group: str) -> None:
        """The story from the moment at which `group` begins."""
        if group == "first":
            self.some_steps()
            if self.seat == DIES:
                self.layers[0].register_forward_pre_hook(lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            while not self.masked:
                self.step(DEATH)
        names = [*GROUPS]
        for name in names[names.index(group) + 1 :]:
            self.some_steps()
            self.tell.send(("begins", name))
            if not self.change(name):
                self.buffer.destroy()
                return
        self.some_steps()
        begin = time.monotonic()
        asleep = self.buffer.pause()
        self.report.memory["asleep"] = sum(asleep.after.values())
        time.sleep(0.2)
        self.buffer.resume()
        self.report.steps.append((SLEEP, time.monotonic() - begin, 0.0))
        self.some_steps()
        self.buffer.barrier()
        self.buffer.destroy()


def _rank(port: int, seat: int, group: str, steps: int, tell: Connection) -> None:
    server = Server(port, seat, group, steps, tell)
    server.serve(group)
    tell.send(("report", server.report))


# ---- the story -----------------------------------------------------------------------------------------------------


@dataclass
class Story:
    """What came of it: (seat, request, tokens) of every finished text, and a report of each process that ended well."""

    texts: list[tuple[int, int, list[int]]] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)

    def wrong(self) -> list[tuple[int, int]]:
        """(seat, request) of texts with other tokens than the undisturbed ones."""
        due = undisturbed()
        return [(seat, request) for seat, request, tokens in self.texts if tokens != due[request]]

    def table(self) -> str:
        """How long whom stood still: the steps of each event, and the longest call of prepare_members and of
        switch_members on any rank."""
        usual = statistics.median(s for r in self.reports for what, s, _ in r.steps if what == USUAL)
        lines = [
            f"{'ms':28}{'steps':>6}{'median':>9}{'longest':>9}{'seat':>6}{'x usual':>9}{'prepare':>9}{'switch':>8}"
        ]
        for what in (USUAL, FIRST, DEATH, *CHANGES.values(), SLEEP):
            taken = [(s, inside, r.seat) for r in self.reports for w, s, inside in r.steps if w == what]
            if not taken:
                continue
            longest, _, seat = max(taken)
            inside, median = max(i for _, i, _ in taken), statistics.median(s for s, *_ in taken)
            steps = max(sum(w == what for w, *_ in r.steps) for r in self.reports)
            prepared = max(r.prepared.get(what, 0.0) for r in self.reports)
            lines.append(
                f"{what:28}{steps:>6}{median * 1e3:>9.1f}{longest * 1e3:>9.1f}{seat:>6}{longest / usual:>9.1f}"
                f"{prepared * 1e3:>9.2f}{inside * 1e3:>8.2f}"
            )
        memory: dict[str, int] = defaultdict(int)
        for report in self.reports:
            for moment, num_bytes in report.memory.items():
                memory[moment] = max(memory[moment], num_bytes)
        return "\n".join([*lines, "", *(f"{moment:34}{n / 1e6:>9.2f} MB a rank" for moment, n in memory.items())])


def play(steps: int) -> Story:
    """Runs the story with so many steps between two events.

    Raises:
        RuntimeError: a process ended that should not.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["torch.distributed", "uccl_ep.examples.expert_parallel", "uccl_ep.examples.small_moe"]
    )
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    story, processes = Story(), dict[Connection, tuple[int, Any]]()

    def start(seat: int, group: str) -> None:
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_rank, args=(store.port, seat, group, steps, there))
        process.start()
        there.close()
        processes[here] = seat, process

    try:
        for seat in GROUPS["first"]:
            start(seat, "first")
        waited_for = {DIES, "grown"}
        while processes:
            for pipe in wait([*processes]):
                assert isinstance(pipe, Connection)
                seat, process = processes[pipe]
                try:
                    kind, *said = pipe.recv()
                except EOFError:
                    del processes[pipe]
                    process.join()
                    if process.exitcode == -signal.SIGKILL and seat == DIES and DIES in waited_for:
                        waited_for.remove(DIES)
                        start(DIES, "replaced")
                    elif process.exitcode != 0:
                        raise RuntimeError(f"seat {seat} ended with {process.exitcode}") from None
                    continue
                if kind == "text":
                    story.texts.append((seat, said[0], said[1]))
                elif kind == "report":
                    story.reports.append(said[0])
                elif said[0] in waited_for:
                    waited_for.remove(said[0])
                    for new in set(GROUPS[said[0]]) - set(GROUPS["first"]):
                        start(new, said[0])
        return story
    finally:
        for _, process in processes.values():
            process.kill()
            process.join()


def main() -> int:
    """The command line; 0 when all tokens are the undisturbed ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="between two events")
    story = play(parser.parse_args().steps)
    wrong = story.wrong()
    print(story.table(), f"\n{len(story.texts)} texts, {len(wrong)} of them other than undisturbed", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
