"""The same requests to a server of one process, to one whose ranks exchange rows by a plain all-gather, and to ours."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.integrations.environment import ROOT
from tests.integrations.serving import model, plain
from tests.integrations.serving.client import Client, Speed
from tests.integrations.serving.server import Answer, Request, Server
from uccl_ep.drop_in import vllm_plugin
from uccl_ep.observe.attach import attach, find
from uccl_ep.observe.sample import take

NODES = 2
_ALONE, _TOGETHER, _TOKENS = 4, 8, 24
_LOG_LINE = re.compile(r"Using uccl_ep\.Buffer for experts: rank (\d+) of (\d+)")
_MODEL_LIMIT_S = 300

Say = Callable[[str], None]


@dataclass
class Served:
    """One server's answers.

    Attributes:
        alone: of requests one after another. together: of requests at the same time.
        sent: bytes that ranks sent to other nodes meanwhile, all requests together; start_s: until it was healthy.
        speed: by vLLM's own client, and bench_sent the bytes that ranks sent to other nodes meanwhile.
        proof: the lines of its log that name us, one a rank.
    """

    name: str
    ranks: int
    alone: list[Answer] = field(default_factory=list)
    together: list[Answer] = field(default_factory=list)
    sent: int = 0
    speed: Speed | None = None
    bench_sent: int = 0
    start_s: float = 0.0
    proof: list[str] = field(default_factory=list)

    @property
    def answers(self) -> list[Answer]:
        return self.alone + self.together


def requests(ranks: int) -> tuple[list[Request], list[Request]]:
    """Those asked one after another, and those asked together: pieces of the text, of 8 to 107 tokens."""
    text = model.TEXT * 2
    every = [Request(text[23 * i : 23 * i + 8 + 9 * i], i % ranks, _TOKENS) for i in range(_ALONE + _TOGETHER)]
    return every[:_ALONE], every[_ALONE:]


def make_model(python: Path, where: Path) -> Path:
    """A checkpoint in `where`, written by the integrator's own transformers."""
    command = [str(python), "-m", "tests.integrations.serving.model", str(where / "model")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=_MODEL_LIMIT_S, capture_output=True)
    return where / "model"


def make_plugins(where: Path) -> Path:
    """A folder for PYTHONPATH: the plain plugin's entry point as a distribution of its own."""
    made = where / "path" / "plain_all_gather-0.dist-info"
    made.mkdir(parents=True)
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: plain-all-gather\nVersion: 0\n")
    (made / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{plain.NAME} = {plain.__name__}:register\n")
    return made.parent


def serve(name: str, plugin: str, ranks: int, client: Client, say: Say) -> Served:
    """Starts a server, asks everything, lets vLLM's client measure it, and ends it."""
    own = client.where / re.sub(r"\W+", "-", name)
    path, counts = make_plugins(own), own / "counts"
    environment = {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{path}",
        "UCCL_EP_RANKS_PER_NODE": str(max(ranks // NODES, 1)),
        "UCCL_EP_DEVICE": "cpu",
        "UCCL_EP_TRANSPORT": "tcp",
        "UCCL_EP_EXPLAIN": "1",
        "PLAIN_COUNTS": str(counts),
    }
    served, begin = Served(name, ranks), time.monotonic()
    with Server(client.python, client.model, ranks, plugin, environment, own / "log") as server:
        served.start_s = time.monotonic() - begin
        say(f"{name}: healthy after {served.start_s:.0f} s")
        one_by_one, at_once = requests(ranks)
        before = _sent(server, plugin, counts)
        served.alone = [server.ask(request) for request in one_by_one]
        served.together = server.ask_all(at_once)
        served.sent = _sent(server, plugin, counts) - before
        served.speed = client.measure(server.port)
        served.bench_sent = _sent(server, plugin, counts) - before - served.sent
        served.proof = [line for line in server.lines("uccl_ep.Buffer") if _LOG_LINE.search(line)]
    say(
        f"{name}: {len(served.answers)} answers, {served.sent:,} bytes between nodes; vllm bench serve: "
        f"{served.speed.tokens_per_s:.1f} tokens/s, {served.bench_sent:,} bytes"
    )
    return served


def _sent(server: Server, plugin: str, counts: Path) -> int:
    """Bytes that all ranks have sent to other nodes so far."""
    if plugin == plain.NAME:
        return sum(int(file.read_text() or 0) for file in counts.parent.glob(f"{counts.name}.*"))
    if plugin == vllm_plugin.NAME:
        return sum(int(take(rank).peers["write_bytes"].sum()) for rank in attach(find(server.pid))[0])
    return 0


def ranks_named(proof: list[str]) -> set[int]:
    """The ranks whose log lines name us."""
    return {int(match[1]) for line in proof if (match := _LOG_LINE.search(line))}


def different_tokens(one: list[Answer], other: list[Answer]) -> int:
    """How many tokens are not the same, in the same places."""
    pairs = zip(one, other, strict=True)
    return sum(a != b for x, y in pairs for a, b in zip(x.tokens, y.tokens, strict=True))


def largest_difference(one: list[Answer], other: list[Answer]) -> float:
    """Between the logarithms of the chosen tokens' probabilities; 0.0: equal to the bit."""
    pairs = zip(one, other, strict=True)
    return max(abs(a - b) for x, y in pairs for a, b in zip(x.logprobs, y.logprobs, strict=True))
