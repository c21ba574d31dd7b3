"""The whole tour: a fresh environment, two hosts, every step in order, and at the end the pictures of pages."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from tests.launchers import hosts
from tests.launchers.hosts import ROOT, Hosts
from tests.tour import steps
from tests.tour.pages import take_pages
from tests.tour.steps import StepFailed, Tour, Way
from tests.tour.transcript import Transcript

STATUS_NOT_RUN = 77  # neither a success nor a failure, as automake has it
Step = Callable[[], None]


def take(transcript: Transcript, path: Sequence[tuple[str, Step]]) -> str:
    """Walks the steps; why one failed, and then none behind it is taken, since each stands on the one before.

    Returns:
        Empty when all were taken.
    """
    for name, step in path:
        begin = time.monotonic()
        try:
            step()
        except (StepFailed, TimeoutError) as error:
            transcript.say(f"**FAILED** at `{name}`:\n\n```text\n{error}\n```")
            return f"{name}: {error}"
        transcript.say(f"_{name}: {time.monotonic() - begin:.0f} s_")
    return ""


def pictures(transcript: Transcript, site: Path) -> None:
    """PNGs of the documentation's pages, where there is a browser; those of terminals are there already.

    Raises:
        StepFailed: there is a browser, and a picture could not be made.
    """
    failed = take_pages(transcript, site)
    if failed:
        raise StepFailed("no picture: " + "\n".join(failed))


def path_of(tour: Tour, on: Hosts, way: Way, site: Path) -> list[tuple[str, Step]]:
    """The steps of a tour, by name."""
    return [
        ("install", lambda: steps.install(tour, way)),
        ("doctor", lambda: steps.doctor(tour)),
        ("demo on two hosts", lambda: steps.demo(tour, on)),
        ("top finds the slow rank", lambda: steps.slow_rank(tour, on)),
        ("kill a rank", lambda: steps.kill(tour, on)),
        ("explain", lambda: steps.explain(tour)),
        ("trace", lambda: steps.trace(tour)),
        ("pictures", lambda: pictures(tour.transcript, site)),
    ]


def walk(transcript: Transcript, way: Way, site: Path) -> str:
    """All steps on two hosts of their own; why one failed, empty when none did."""
    with tempfile.TemporaryDirectory(prefix="tour-") as name, Hosts(steps.HOSTS) as on:
        folder = Path(name)
        python = Path(sys.executable) if way == "here" else folder / "environment" / "bin" / "python"
        tour = Tour(transcript, python, way != "here", folder)
        failed = take(transcript, path_of(tour, on, way, site))
        if failed:
            for agent in tour.agents:
                transcript.say("The job had printed on a host:")
                transcript.output("\n".join(agent.all()))
    return failed


def _end(number: int, _: object) -> None:
    """Of a time limit, say: by an exception, so that the hosts, their processes and the folder go too."""
    raise SystemExit(128 + number)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 0 when every step was taken, 1 when one failed, 77 when no hosts can be made here."""
    parser = argparse.ArgumentParser(prog="python -m tests.tour", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "tour", help="transcript.md and pictures")
    parser.add_argument("--site", type=Path, default=ROOT / "build" / "site", help="the built documentation")
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--linked", action="store_true", help="install only uccl-ep; link what it depends on from here")
    ways.add_argument("--here", action="store_true", help="install nothing: this Python and checkout")
    options = parser.parse_args(arguments)
    way: Way = "here" if options.here else "linked" if options.linked else "fresh"
    console, begin = Console(soft_wrap=True), time.monotonic()
    why = hosts.missing()
    if why:
        console.print(f"NOT RUN: two hosts cannot be made: {why}. As root, docker/install.sh hosts", style="red")
        return STATUS_NOT_RUN
    shutil.rmtree(options.out, ignore_errors=True)
    transcript = Transcript(options.out, console)
    signal.signal(signal.SIGTERM, _end)
    failed = walk(transcript, way, options.site)
    transcript.say(f"_all of it: {time.monotonic() - begin:.0f} s on {os.cpu_count()} cores_")
    for lack in transcript.lacks:
        console.print(f"NOT MADE: {lack}", style="red")
    console.print(
        f"{options.out / 'transcript.md'}, {len(transcript.pictures)} pictures, {transcript.not_made} not made"
    )
    console.print(f"FAILED at {failed}" if failed else "The whole path was walked.", style="red" if failed else "green")
    return int(bool(failed))
