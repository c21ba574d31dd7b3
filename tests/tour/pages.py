"""Pictures of the documentation's pages, where there is a browser; where there is none, the tour says what it lacks."""

from __future__ import annotations

from pathlib import Path

from docs import screenshots
from tests.tour.transcript import Transcript
from tests.tour.window import uniform


def take_pages(transcript: Transcript, site: Path) -> list[str]:
    """A PNG of each of the documentation's pages, beside the transcript.

    Args:
        site: the built documentation.

    Returns:
        Why pages could not be pictured.
    """
    transcript.chapter("Read on", "The documentation, as pages.")
    browser = screenshots.find_browser()
    if browser is None:
        count = len(screenshots.PAGES)
        transcript.lack(count, f"pictures of pages: no Chromium here; docker/install.sh pictures ({count} pages)")
        return []
    failed = []
    for name in screenshots.PAGES:
        page, picture = site / name, transcript.folder / f"docs-{Path(name).stem}.png"
        if not page.is_file():
            transcript.lack(1, f"picture of {name}: it is not in {site}; make docs")
            continue
        try:
            screenshots.take(browser, page, picture)
        except screenshots.NoPicture as error:
            failed.append(str(error))
            continue
        if uniform(picture):
            failed.append(f"{name}: all pixels of its picture are alike")
            continue
        transcript.show(picture)
    return failed
