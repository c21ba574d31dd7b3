"""The whole site builds with --strict: no warning, no broken link or anchor, every page and picture there."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from docs.generate.pages import all_pages, generated_files
from docs.screenshots import find_browser, headless

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("mkdocs", "material", "mkdocstrings")


@pytest.mark.slow
@pytest.mark.timeout(180)  # a few seconds of one core; more on a busy machine
def test_docs_site_builds_without_a_warning(tmp_path: Path) -> None:
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if absent and os.environ.get("UCCL_EP_REQUIRE_TOOLS") != "1":
        pytest.skip(f"NOT RUN: not installed: {', '.join(absent)} (make .venv/.stamp-docs)")
    site = tmp_path / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    for page in all_pages():
        html = (site / Path(page).with_suffix(".html")).read_text(encoding="utf-8")
        outside = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?:[^"]+)"', html)
        assert not outside, f"{page} loads {outside} from elsewhere"
    for name in generated_files():
        if name.endswith(".svg"):
            assert (site / name).is_file()
    _search_works_from_the_folder(site)
    buffer = (site / "api/buffer.html").read_text(encoding="utf-8")
    for method in ("dispatch", "combine", "low_latency_dispatch", "low_latency_combine", "recover"):
        assert f'id="uccl_ep.buffer.Buffer.{method}"' in buffer


def _search_works_from_the_folder(site: Path) -> None:
    """A browser that opens the site without a server finds a page: docs/pages/iframe-worker.js."""
    browser = find_browser()
    if browser is None:
        assert os.environ.get("UCCL_EP_REQUIRE_TOOLS") != "1", "no browser is installed (docker/install.sh pictures)"
        return
    with tempfile.TemporaryDirectory() as profile:
        address = f"{(site / 'index.html').as_uri()}?q=PeerTimeout"
        done = subprocess.run(
            [*headless(browser, profile), "--virtual-time-budget=8000", "--dump-dom", address],
            capture_output=True,
            text=True,
            timeout=70,
        )
    assert re.search(r'md-search-result__meta">\d+ matching documents', done.stdout), done.stderr[-2000:]
