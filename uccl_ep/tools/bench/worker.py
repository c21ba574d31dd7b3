"""One rank of a measurement: rounds in which every side has its turn, each result checked.

Started by launch.py as `python -m uccl_ep.tools.bench.worker FOLDER [RANK]`; under mpirun the rank is MPI's. It writes
FOLDER/rank-<r>.json, or FOLDER/error-<r>.txt.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from uccl_ep.tools.bench.meeting import Meeting
from uccl_ep.tools.bench.options import BenchOptions

# Rounds in which each form of a peer is tried. Never one alone: a first round makes connections and touches buffers,
# and can take ten times as long as the next, whichever form it is. In low latency two sets of inputs meet three sets of
# rows, and a page that a rank sees for the first time costs more than the rows in it.
WARM_UP = {"throughput": 2, "low-latency": 6}
LEAST_ROUNDS = 3
SPEC = "spec.json"


def load_spec(folder: Path) -> tuple[BenchOptions, int]:
    """(options, port of rank 0's store) that launch.py left in the folder."""
    spec = json.loads((folder / SPEC).read_text(encoding="utf-8"))
    spec["options"]["peers"] = tuple(spec["options"]["peers"])
    return BenchOptions(**spec["options"]), int(spec["port"])


def variables(options: BenchOptions) -> dict[str, str]:
    """What a rank sets in its process's environment."""
    return {
        "UCCL_EP_RANKS_PER_NODE": str(options.ranks_per_node),
        "UCCL_EP_TRANSPORT": options.transport,
        "UCCL_EP_LOW_LATENCY_COMBINE": options.combine,
    }


class Rounds:
    """The sides of a measurement and how a round of one of them goes."""

    def __init__(self, options: BenchOptions, rank: int) -> None:
        from uccl_ep.tools.bench.inputs import expected_factor, make_inputs

        self.inputs = [make_inputs(options, rank, number) for number in range(2)]
        self._factors = [expected_factor(options, one) for one in self.inputs]

    def play(self, side: Any, number: int, barrier: Callable[[], None]) -> tuple[float, float, float]:
        """Seconds of dispatch and of combine, both begun when all ranks have come, and the CPU seconds of both.

        What is not timed begins when all ranks have ended a phase: on a machine with fewer cores than ranks it would
        take time from those that are still in it. CPU time is the whole process's, proxies included; it hardly depends
        on what else the machine does.

        Raises:
            ValueError: the side returned wrong rows.
        """
        from uccl_ep.tools.bench.inputs import TOLERANCE, worst_error

        inputs, factor = self.inputs[number % 2], self._factors[number % 2]
        barrier()
        used, begin = time.process_time(), time.perf_counter()
        state = side.dispatch(inputs)
        dispatched, used = time.perf_counter() - begin, time.process_time() - used
        barrier()
        side.experts(state)
        barrier()
        used, begin = time.process_time() - used, time.perf_counter()
        out = side.combine(inputs, state)
        combined, used = time.perf_counter() - begin, time.process_time() - used
        barrier()
        error = worst_error(out, inputs, factor)
        if error > TOLERANCE:
            raise ValueError(f"{side.name} returned wrong rows in round {number}: relative error {error:.3g}")
        return dispatched, combined, used


def order(sides: list[Any], number: int) -> list[Any]:
    """The sides in the order of a round: each comes first equally often, and every other round goes backwards."""
    first = (number // 2) % len(sides)
    turned = sides[first:] + sides[:first]
    return turned[::-1] if number % 2 else turned


def _forms(options: BenchOptions, rank: int, group: Any) -> dict[str, list[Any]]:
    """Both forms of each peer."""
    from uccl_ep.tools.bench.collectives import Collective, GlooCollective, MpiCollective
    from uccl_ep.tools.bench.per_expert import PerExpert
    from uccl_ep.tools.bench.per_rank import PerRank
    from uccl_ep.tools.bench.staging import Staging

    staging = Staging(options.hidden)
    found = {}
    for peer in options.peers:
        collective: Collective = GlooCollective(group) if peer == "gloo" else MpiCollective(options.hidden)
        found[peer] = [form(options, rank, collective, staging) for form in (PerRank, PerExpert)]
    return found


def try_forms(
    ours: Any, forms: dict[str, list[Any]], seconds: Callable[[Any, int], float], rounds: int
) -> dict[str, dict[str, float]]:
    """Plays `rounds` rounds of every side; the last one's seconds, by peer and form."""
    for number in range(rounds):
        seconds(ours, number)
        tried = {peer: {side.form: seconds(side, number) for side in sides} for peer, sides in forms.items()}
    return tried


def _from_first(value: Any) -> Any:
    """What rank 0 has given."""
    import torch.distributed as dist

    shared = [value]
    dist.broadcast_object_list(shared, src=0)
    return shared[0]


def _slowest(seconds: float) -> float:
    import torch
    import torch.distributed as dist

    value = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return float(value)


def _loaded(options: BenchOptions) -> dict[str, str]:
    """Versions of what this process has really loaded."""
    import hashlib

    import numpy
    import torch

    import uccl_ep
    from uccl_ep import _native

    native = hashlib.sha256(Path(str(_native.__file__)).read_bytes()).hexdigest()[:12]
    loaded = {"uccl_ep": uccl_ep.__version__, "native module": f"sha256 {native}", "torch": torch.__version__}
    loaded["numpy"] = numpy.__version__
    if "openmpi" in options.peers:
        import mpi4py
        from mpi4py import MPI

        loaded["mpi4py"] = mpi4py.__version__
        loaded["mpi"] = str(MPI.Get_library_version()).split(",")[0].strip("\0 ")
    return loaded


def measure(rank: int, options: BenchOptions, port: int) -> dict[str, Any]:
    """All rounds of a rank; see `_report` for what it returns."""
    import torch
    import torch.distributed as dist

    from uccl_ep.tools.bench.ours import Ours

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=options.ranks)
    meeting = Meeting(rank, options.ranks, _from_first)
    rounds = Rounds(options, rank)
    ours, forms = Ours(options, rank, dist.group.WORLD), _forms(options, rank, dist.group.WORLD)

    def seconds(side: Any, number: int) -> float:
        return _slowest(sum(rounds.play(side, number, meeting.wait)[:2]))

    tried = try_forms(ours, forms, seconds, WARM_UP[options.mode])
    strongest = [min(sides, key=lambda side: tried[side.name][side.form]) for sides in forms.values()]
    probes = _probes(options, rank, rounds, ours)
    report = {
        **_timed(options, rounds, [ours, *strongest], probes, meeting),
        "tried": tried,
        "forms": {side.name: side.form for side in strongest},
        **_report(options, rounds, ours),
    }
    meeting.wait()
    if probes["sockets"] is not None:
        probes["sockets"].close()
    ours.close()
    meeting.wait()  # nobody's connections end while another still needs them
    meeting.close()
    dist.destroy_process_group()
    return report


def _from_all(value: Any) -> list[Any]:
    """What each rank has given."""
    import torch.distributed as dist

    shared: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(shared, value)
    return shared


def _probes(options: BenchOptions, rank: int, rounds: Rounds, ours: Any) -> dict[str, Any]:
    """What the machine can do at its best, by name; None where others measure it, or there is nothing to measure."""
    from uccl_ep.tools.bench.limit import CopyProbe, num_copiers
    from uccl_ep.tools.bench.sockets import SocketProbe

    over_tcp = any(peer["via"] == "tcp" for peer in ours.buffer.stats()["peers"])
    return {
        "copies": CopyProbe() if rank < num_copiers(options) else None,
        "sockets": SocketProbe(options, rank, rounds.inputs[0], _from_all) if over_tcp else None,
    }


def _timed(
    options: BenchOptions, rounds: Rounds, sides: list[Any], probes: dict[str, Any], meeting: Meeting
) -> dict[str, Any]:
    """{"times": by side and round, and of each probe its seconds by round (none of one that is None)}."""
    times: dict[str, list[tuple[float, float, float]]] = {side.name: [] for side in sides}
    probed: dict[str, list[float]] = {name: [] for name in probes}
    begin = time.monotonic()
    for number in range(options.rounds):
        for name, probe in probes.items():
            meeting.wait()
            if probe is not None:
                probed[name].append(probe.seconds())
        for side in order(sides, number):
            times[side.name].append(rounds.play(side, number, meeting.wait))
        spent = _slowest(time.monotonic() - begin)  # so that all ranks end after the same round
        if number + 1 >= LEAST_ROUNDS and spent >= options.budget_s:
            break
    return {"times": times, **probed}


def _report(options: BenchOptions, rounds: Rounds, ours: Any) -> dict[str, Any]:
    from uccl_ep.tools.bench.limit import output_rows
    from uccl_ep.tools.bench.sockets import crossing_rows

    stats = ours.buffer.stats()
    rows = [output_rows(options, inputs) for inputs in rounds.inputs]
    return {
        "output_rows": sum(rows) / len(rows),
        "crossing_rows": crossing_rows(options, rounds.inputs[0], ours.buffer.rank),
        "proxy": stats["proxy"],
        "combine": stats["low_latency_combine"],
        "via": sorted({peer["via"] for peer in stats["peers"]}),
        "loaded": _loaded(options),
    }


def run_rank(folder: Path, rank: int) -> int:
    """Measures and writes the rank's file; returns the exit status."""
    try:
        options, port = load_spec(folder)
        os.environ.update(variables(options))
        report = measure(rank, options, port)
    except Exception as error:  # the parent prints it; a trace per rank would bury it
        _write(folder / f"error-{rank}.txt", f"{type(error).__name__}: {error}")
        return 1
    _write(folder / f"rank-{rank}.json", json.dumps(report))
    return 0


def _write(path: Path, text: str) -> None:
    """The file appears whole: the parent looks for it while we write."""
    part = path.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    part.rename(path)


def main(arguments: list[str]) -> int:
    """FOLDER [RANK]."""
    if len(arguments) > 1:
        return run_rank(Path(arguments[0]), int(arguments[1]))
    import mpi4py

    mpi4py.rc.thread_level = "funneled"  # one thread of a rank calls MPI, so MPI need not lock
    from mpi4py import MPI

    return run_rank(Path(arguments[0]), int(MPI.COMM_WORLD.Get_rank()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
