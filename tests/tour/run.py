"""The whole tour: a fresh environment, two hosts, every step in order, and at the end the pictures of pages."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from docs import screenshots
from tests.launchers import hosts
from tests.launchers.hosts import ROOT, Hosts
from tests.tour import steps
from tests.tour.steps import StepFailed, Tour
from tests.tour.transcript import Transcript

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
    """PNGs of this tour's terminal windows and of the documentation's pages, where there is a browser and a site.

    Raises:
        StepFailed: there is a browser, and a picture could not be made.
    """
    transcript.chapter("Read on", "The documentation, as pages.")
    browser = screenshots.find_browser()
    if browser is None:
        transcript.say(f"NOT DONE: no PNG, since no browser is installed ({', '.join(screenshots.BROWSERS)}).")
        return
    pages = [site / name for name in screenshots.PAGES if (site / name).is_file()]
    if len(pages) < len(screenshots.PAGES):
        transcript.say(
            f"NOT DONE: {len(screenshots.PAGES) - len(pages)} pages are not in {site}: build it by `make docs`."
        )
    for page in [*transcript.pictures, *pages]:
        picture = transcript.folder / f"{page.stem}.png"
        frame = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', page.read_text(encoding="utf-8"))
        size = (1280, 1600) if page.suffix != ".svg" or frame is None else (int(float(frame[1])), int(float(frame[2])))
        try:
            screenshots.take(browser, page, picture, size)
        except screenshots.NoPicture as error:
            raise StepFailed(f"no picture: {error}") from None
        if page.suffix != ".svg":
            transcript.say(f"![{page.stem}]({picture.name})")


def path_of(tour: Tour, on: Hosts, wheel: Path | None, site: Path) -> list[tuple[str, Step]]:
    """The steps of a tour, by name."""
    return [
        ("install", lambda: steps.install(tour, wheel)),
        ("doctor", lambda: steps.doctor(tour)),
        ("demo on two hosts", lambda: steps.demo(tour, on)),
        ("top finds the slow rank", lambda: steps.slow_rank(tour, on)),
        ("kill a rank", lambda: steps.kill(tour, on)),
        ("explain", lambda: steps.explain(tour)),
        ("pictures", lambda: pictures(tour.transcript, site)),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 0 when every step was taken, 1 when one failed, 2 when no hosts can be made here."""
    parser = argparse.ArgumentParser(prog="python -m tests.tour", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "tour", help="transcript.md and pictures")
    parser.add_argument("--site", type=Path, default=ROOT / "build" / "site", help="the built documentation")
    parser.add_argument("--here", action="store_true", help="this Python and checkout, instead of a fresh environment")
    options = parser.parse_args(arguments)
    console = Console()
    why = hosts.missing()
    if why:
        console.print(
            f"NOT RUN: two hosts cannot be made here: {why}. docker/install.sh hosts; and be root", style="red"
        )
        return 2
    shutil.rmtree(options.out, ignore_errors=True)
    transcript = Transcript(options.out, console)
    wheel = None
    if not options.here:
        from tests.packaging.wheel import built_wheel

        wheel = built_wheel()
    with tempfile.TemporaryDirectory(prefix="tour-") as name, Hosts(steps.HOSTS) as on:
        folder = Path(name)
        python = Path(sys.executable) if wheel is None else folder / "environment" / "bin" / "python"
        tour = Tour(transcript, python, wheel is not None, folder)
        failed = take(transcript, path_of(tour, on, wheel, options.site))
        if failed:
            for agent in tour.agents:
                transcript.say("The job had printed on a host:")
                transcript.output("\n".join(agent.all()))
    console.print(
        f"\n{'FAILED at ' + failed if failed else 'The whole path was walked.'}", style="red" if failed else "green"
    )
    console.print(f"{options.out / 'transcript.md'} and {len(transcript.pictures)} pictures", soft_wrap=True)
    return int(bool(failed))
