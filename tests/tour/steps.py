"""The newcomer's steps, in order. Each runs what a person would type, keeps what came back, and judges it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.launchers.hosts import Hosts, rank_environment
from tests.packaging.wheel import built_wheel
from tests.tour import environments, timeline
from tests.tour.lines import Lines
from tests.tour.transcript import COLUMNS, Transcript, plain

HERE = Path(__file__).parent
RANKS_PER_HOST, HOSTS = 2, 2
SLOW, VICTIM = 3, 2  # both on the second host, and looked at from the first
TOP_COLUMNS = (130, 80)
DELAY_MS = 200.0  # of the slow rank in each step: far above what a busy machine does to the others
CLOCK_S, NOTICED_S = 0.05, 20.0  # two readings of one clock; from a death to who notices it on a busy machine
LIMIT_S = 600.0  # of a command; ranks import torch, also where others use the cores


Way = Literal["fresh", "linked", "here"]
"""Of installing; the first two are of environments.py."""


class StepFailed(Exception):
    """A newcomer would be stuck here; the text says what was expected and what was seen."""


@dataclass
class Tour:
    """What steps share.

    Attributes:
        transcript: where it is told. python: of the environment with uccl-ep. installed: it has the wheel, so that
            nothing may come from this checkout. folder: of the tour's files. agents: torchrun on each host.
        pids: by rank, its process as its host numbers it. killed: when the victim was killed, in time.time().
    """

    transcript: Transcript
    python: Path
    installed: bool
    folder: Path
    agents: list[Lines] = field(default_factory=list)
    pids: dict[int, int] = field(default_factory=dict)
    killed: float = 0.0

    @property
    def dumps(self) -> Path:
        """Where ranks leave their flight records."""
        return self.folder / "flight"

    def environment(self, **more: str) -> dict[str, str]:
        """Of every command."""
        given = rank_environment(**{"COLUMNS": str(COLUMNS), "TERM": "xterm-256color", **more})
        if self.installed:
            del given["PYTHONPATH"]
        return given

    def uccl_ep(self, *words: str, picture: str = "", columns: int = COLUMNS, on: Hosts | None = None) -> str:
        """What `uccl-ep WORDS` printed, on this machine or on the first host; the transcript gets it.

        Raises:
            StepFailed: it is no command, it failed, or took too long.
        """
        typed = shlex.join(["uccl-ep", *words])
        command = [str(self.python), "-m", "uccl_ep", *words]
        environment = self.environment(COLUMNS=str(columns), **({"FORCE_COLOR": "1"} if picture else {}))
        output = self._run(on.enter(0, command) if on else command, typed, environment)
        self.transcript.command(typed, output, on.name(0) if on else "")
        if picture:
            self.transcript.picture(picture, typed, output, columns)
        return output

    def ask(self, *words: str, on: Hosts | None = None, host: int = 0) -> Any:
        """What `uccl-ep WORDS --json` says, on this machine or on a host; the transcript gets only what is made of it.

        Raises:
            StepFailed: it is no command, it failed, took too long, or said something else than JSON.
        """
        typed = shlex.join(["uccl-ep", *words, "--json"])
        command = [str(self.python), "-m", "uccl_ep", *words, "--json"]
        output = self._run(on.enter(host, command) if on else command, typed, self.environment(), apart=True)
        try:
            return json.loads(output)
        except ValueError:
            raise StepFailed(f"{typed}: this is no JSON:\n{output}") from None

    def _run(self, command: Sequence[str], typed: str, environment: dict[str, str], apart: bool = False) -> str:
        """What a command printed; its errors too, unless they are to be kept apart."""
        try:
            done = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE if apart else subprocess.STDOUT,
                text=True,
                timeout=LIMIT_S,
                env=environment,
                cwd=self.folder,
            )
        except subprocess.TimeoutExpired:
            raise StepFailed(f"{typed}: not done within {LIMIT_S:.0f} s") from None
        if done.returncode:
            said = plain(done.stdout + (done.stderr or ""))
            self.transcript.command(typed, said)
            raise StepFailed(f"{typed}: ended with status {done.returncode}\n{said}")
        return done.stdout

    def torchrun(self, on: Hosts, *words: str, **more: str) -> list[Lines]:
        """Starts torchrun on each host with these words."""
        where = f"--nnodes {HOSTS} --nproc-per-node {RANKS_PER_HOST} --master-addr {on.name(0)} --master-port 29500"
        shown = [word.removeprefix(f"{HERE}/").removeprefix(f"{self.folder}/") for word in words]
        agents = []
        for host in range(HOSTS):
            self.transcript.command(f"torchrun {where} --node-rank {host} {shlex.join(shown)}", "", on.name(host))
            command = [
                str(self.python),
                "-m",
                "torch.distributed.run",
                *where.split(),
                "--node-rank",
                str(host),
                *words,
            ]
            agents.append(Lines(on.start(host, command, self.environment(GLOO_SOCKET_IFNAME="eth0", **more))))
        return agents


def install(tour: Tour, way: Way) -> None:
    """An environment of its own with the wheel; for "here", what this Python has.

    Raises:
        StepFailed: a command of it failed, or what is installed does not say what it is.
    """
    tour.transcript.chapter("Install", "One wheel: no compiler, no GPU toolkit, no headers of a network.")
    folder = tour.python.parent.parent
    try:
        if way == "here":
            tour.transcript.say("SKIPPED (`--here`): nothing was installed, this is a checkout that is set up already.")
        elif way == "fresh":
            wheel = built_wheel()
            output = environments.fresh(wheel, folder, LIMIT_S)
            tour.transcript.command(f"WHEEL={wheel.name} docker/install.sh package", output)
        else:
            tour.transcript.say(
                "SKIPPED (`--linked`): fetching and unpacking what uccl-ep depends on, which is linked; compiling, for "
                "the wheel packs what this checkout has compiled."
            )
            wheel = environments.pack(tour.folder)
            output = environments.linked(wheel, folder, LIMIT_S)
            tour.transcript.command(f"pip install --no-index {wheel.name}", output)
    except (environments.NotInstalled, AssertionError) as error:
        raise StepFailed(str(error)) from None
    version = tour.uccl_ep("version")
    if "uccl-ep" not in version or "torch" not in version:
        raise StepFailed(f"uccl-ep version names neither itself nor torch:\n{version}")
    if tour.installed:
        place = tour._run(
            [str(tour.python), "-c", "import uccl_ep; print(uccl_ep.__file__)"], "import uccl_ep", tour.environment()
        )
        if not place.startswith(str(folder)):
            raise StepFailed(f"uccl_ep comes from {place.strip()}, not from the new environment {folder}")


def doctor(tour: Tour) -> None:
    """What can this machine do?"""
    tour.transcript.chapter("What can this machine do?", "Every path that rows can take, and what each still needs.")
    tour.uccl_ep("doctor", picture="doctor")
    judged = tour.ask("doctor", "--path", "cpu", "--path", "tcp", "--require", "cpu", "--require", "tcp")
    states = {path: verdict["state"] for path, verdict in judged["paths"].items()}
    if not judged["satisfied"]:
        raise StepFailed(f"uccl-ep doctor --json: this tour needs cpu and tcp: {states}")
    tour.transcript.say(
        "`uccl-ep doctor --require cpu --require tcp --json`, as a job would ask it first: both can be used."
    )


def demo(tour: Tour, on: Hosts) -> None:
    """A model trained over two hosts, and by one process."""
    tour.transcript.chapter(
        "Two hosts", "A small mixture of experts, its experts spread over two hosts, started by torchrun on each."
    )
    script, job = HERE / "demo_job.py", tour.folder / "demo"
    job.mkdir()
    tour._run([str(tour.python), str(script), "prepare", str(job)], "demo_job.py prepare demo", tour.environment())
    for agent in tour.torchrun(on, "-m", "uccl_ep.tools.demo.worker", str(job)):
        if agent.finish(LIMIT_S):
            raise StepFailed("the demo's ranks failed:\n" + "\n".join(agent.all()))
    typed = "demo_job.py compare demo"
    output = tour._run([str(tour.python), str(script), "compare", str(job)], typed, tour.environment(FORCE_COLOR="1"))
    tour.transcript.say(
        "Then the same training in one process, and the two losses side by side. (Both hosts and all ranks share the "
        "cores of one machine here, so tokens/s and waits say nothing of speed.)"
    )
    tour.transcript.command(typed, output)
    tour.transcript.picture("demo", typed, output)


def slow_rank(tour: Tour, on: Hosts) -> None:
    """A job with one slow rank, which top names."""
    tour.transcript.chapter(
        "Which rank is slow?",
        f"A job whose rank {SLOW} computes {DELAY_MS:.0f} ms too long in each step. Nobody told `top` which.",
    )
    words = [str(HERE / "job.py"), "--slow", str(SLOW), "--delay-ms", str(DELAY_MS)]
    tour.dumps.mkdir()
    tour.agents = tour.torchrun(on, *words, UCCL_EP_FLIGHT_RECORDER=str(tour.dumps))
    for rank in range(HOSTS * RANKS_PER_HOST):
        agent = tour.agents[rank // RANKS_PER_HOST]
        tour.pids[rank] = int(agent.wait_for(rf"rank {rank} is process (\d+) on ", LIMIT_S)[1])
    tour.agents[0].wait_for(r"^step \d+ by ", LIMIT_S)
    for columns in TOP_COLUMNS:
        shown = tour.uccl_ep("top", "--once", "--interval", "3", picture=f"top-{columns}", columns=columns, on=on)
        check_width(plain(shown), columns)
    seen = tour.ask("top", "--once", "--interval", "3", on=on)
    named = [(job["slow"] or {}).get("rank") for job in seen["jobs"]]
    if named != [SLOW]:
        raise StepFailed(f"uccl-ep top names {named} as the slow rank of each job, it is rank {SLOW}")
    suspects = seen["jobs"][0]["waits"]["suspects"]
    if (SLOW, "late") not in [(suspect["rank"], suspect["kind"]) for suspect in suspects]:
        raise StepFailed(f"uccl-ep top says that the network is slow, but rank {SLOW} computes too long: {suspects}")
    tour.transcript.say(
        f"`--json` says the same: `{json.dumps(seen['jobs'][0]['slow'])}`. It is rank {SLOW}, as injected."
    )


def check_width(shown: str, columns: int) -> None:
    """What a terminal of so many columns shows: nothing beside it, and a line for each rank of the host.

    Raises:
        StepFailed: a line is longer, or a rank is not to be seen.
    """
    lines = [line.rstrip() for line in shown.splitlines()]
    wide = [line for line in lines if len(line) > columns]
    absent = [rank for rank in range(RANKS_PER_HOST) if not any(re.match(rf" *{rank} ", line) for line in lines)]
    if wide or absent:
        raise StepFailed(f"top in {columns} columns: too long are {wide}, not shown are ranks {absent}:\n{shown}")


def kill(tour: Tour, on: Hosts) -> None:
    """A rank is killed; the others say whom they have lost."""
    tour.transcript.chapter(
        "A rank dies", "Killed from outside, without a word. The others end with an error, not with a hang."
    )
    host = VICTIM // RANKS_PER_HOST
    typed = f"kill -9 {tour.pids[VICTIM]}"
    tour.killed = time.time()
    tour._run(on.enter(host, typed.split()), typed, tour.environment())
    tour.transcript.command(typed, "", on.name(host))
    told = []
    for rank in range(RANKS_PER_HOST):  # of the first host; those of the second may be ended by their torchrun
        told.append(tour.agents[0].wait_for(rf"^rank {rank} ends at step .*", LIMIT_S)[0])
    for agent in tour.agents:
        agent.finish(LIMIT_S)
    tour.transcript.say("What the ranks of the other host say as they end:")
    notes = [line for line in tour.agents[0].all() if "flight record" in line or "uccl-ep explain" in line]
    tour.transcript.output("\n".join([*told, *dict.fromkeys(notes)]))
    wrong = [line for line in told if "PeerLost" not in line or f"rank {VICTIM}" not in line]
    if wrong:
        raise StepFailed(f"not every survivor names rank {VICTIM} as lost:\n" + "\n".join(wrong))


def explain(tour: Tour) -> None:
    """The flight records tell which rank, and when."""
    tour.transcript.chapter("What has happened?", "Each survivor has left a record of its last events.")
    records = sorted(path.name for path in tour.dumps.rglob("*") if path.is_file())
    if not records:
        raise StepFailed(f"UCCL_EP_FLIGHT_RECORDER={tour.dumps}: no rank has left a record there")
    tour.uccl_ep("explain", "flight", picture="explain")
    late = judge(tour.ask("explain", "flight"), tour.killed)
    tour.transcript.say(
        f"Rank {VICTIM} it was, and the time is that of the kill: the first to notice did {late:.2f} s later."
    )


def trace(tour: Tour) -> None:
    """The same records as a time line of all ranks."""
    tour.transcript.chapter("When was what?", "The records of all ranks on one clock, for Perfetto.")
    tour.uccl_ep("trace", "flight", "-o", "trace.json")
    made = json.loads((tour.folder / "trace.json").read_text(encoding="utf-8"))
    picture = tour.transcript.folder / "trace.png"
    try:
        arrows = timeline.draw(made, picture)
    except ValueError as error:
        raise StepFailed(f"uccl-ep trace: {error}") from None
    tour.transcript.show(picture)
    tour.transcript.say(f"Ranks of these messages, as the file has them: {arrows}.")


def judge(story: dict[str, Any], killed: float) -> float:
    """Whether explain's JSON says which rank was lost, and when.

    Args:
        story: its object. killed: when the victim was killed, in seconds since 1970.

    Returns:
        Seconds from the kill to the moment when the first survivor noticed.

    Raises:
        StepFailed: it leads to another rank, or to another time.
    """
    lost = {loss["rank"]: loss for loss in story["lost"]}
    if story["root_cause"] != VICTIM or VICTIM not in lost:
        raise StepFailed(f"explain leads to rank {story['root_cause']}, lost are {sorted(lost)}: it was rank {VICTIM}")
    late = float(lost[VICTIM]["at"]) - killed
    if not -CLOCK_S <= late <= NOTICED_S:
        raise StepFailed(
            f"explain says that rank {VICTIM} was lost {late:.3f} s after it was killed: 0 to {NOTICED_S} s"
        )
    return late
