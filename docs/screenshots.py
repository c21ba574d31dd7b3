"""PNG pictures of pages of the built site, by a headless Chromium where there is one.

    python -m docs.screenshots --site build/site --out build/tour [PAGE...]

Ends with status 0 when every picture was made, 3 when no browser was found (nothing is made then), 1 when one failed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "headless_shell")
PAGES = ("index.html", "journey.html", "troubleshooting.html", "comparison.html")
STATUS_FAILED, STATUS_NO_BROWSER = 1, 3
_SIZE = (1280, 1600)  # pixels
_LIMIT_S = 70.0  # a page; a busy machine needs most of it to start a browser


class NoPicture(RuntimeError):
    """The browser ended without a picture; the text holds its last words."""


def find_browser() -> str | None:
    """The browser that BROWSER names, or the first of BROWSERS on the path."""
    named = os.environ.get("BROWSER", "")
    candidates = [named, *BROWSERS] if named else list(BROWSERS)
    return next((path for name in candidates if (path := shutil.which(name))), None)


def headless(browser: str, profile: str) -> list[str]:
    """The beginning of a command that shows one of our own files to nobody; `profile` is an empty folder."""
    return [
        browser,
        "--headless",
        "--no-sandbox",  # root, as in containers, cannot have the sandbox
        "--disable-gpu",
        "--no-first-run",
        "--disable-dev-shm-usage",  # containers have little of it
        f"--user-data-dir={profile}",
    ]


def take(browser: str, page: Path, picture: Path, size: tuple[int, int] = _SIZE) -> None:
    """One page as one PNG.

    Args:
        browser: a Chromium or Chrome.
        page: an HTML file.
        picture: the PNG to write; its folder exists.
        size: width and height in pixels.

    Raises:
        NoPicture: it ended without one, or took over 70 s.
    """
    picture.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as profile:
        command = [
            *headless(browser, profile),
            "--hide-scrollbars",
            "--virtual-time-budget=3000",  # of the page's own clock, milliseconds: until what moves has come to rest
            f"--window-size={size[0]},{size[1]}",
            f"--screenshot={picture.resolve()}",
            page.resolve().as_uri(),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NoPicture(f"{page.name}: {error}") from error
    if not picture.is_file() or picture.read_bytes()[:8] != b"\x89PNG\r\n\x1a\n":
        raise NoPicture(f"{page.name}: {browser} ended with status {done.returncode}: {done.stderr[-300:].strip()}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m docs.screenshots", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--site", type=Path, default=Path("build/site"), help="folder of the built site")
    parser.add_argument("--out", type=Path, default=Path("build/tour"), help="folder for the PNG files")
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"pages of the site; default: {' '.join(PAGES)}")
    options = parser.parse_args(arguments)
    browser = find_browser()
    if browser is None:
        print(f"no browser for screenshots: none of {', '.join(BROWSERS)} is installed", file=sys.stderr)
        return STATUS_NO_BROWSER
    options.out.mkdir(parents=True, exist_ok=True)
    status = 0
    for name in options.pages or PAGES:
        page = options.site / name
        picture = (
            options.out / f"docs-{page.relative_to(options.site).with_suffix('').as_posix().replace('/', '-')}.png"
        )
        try:
            if not page.is_file():
                raise NoPicture(f"{page} does not exist: build the site first (make docs)")
            take(browser, page, picture)
            print(picture)
        except NoPicture as error:
            print(error, file=sys.stderr)
            status = STATUS_FAILED
    return status


if __name__ == "__main__":
    sys.exit(main())
