"""The script that takes pictures of pages, with a browser that the test plays, and with a real one if there is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs import screenshots

FAKE = """#!/bin/sh
for argument in "$@"; do
  case "$argument" in --screenshot=*) printf '\\211PNG\\r\\n\\032\\n%s' "$*" > "${argument#--screenshot=}";; esac
done
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    (folder / "guide").mkdir(parents=True)
    for name in ("index.html", "guide/one two.html"):
        (folder / name).write_text("<h1>page</h1>", encoding="utf-8")
    return folder


def browser(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "browser"
    program.write_text(text, encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(program))


def test_docs_screenshots_of_pages(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    browser(tmp_path, FAKE, monkeypatch)
    out = tmp_path / "new" / "tour"
    arguments = ["--site", str(site), "--out", str(out), "index.html", "guide/one two.html"]
    assert screenshots.main(arguments) == 0
    assert sorted(p.name for p in out.iterdir()) == ["docs-guide-one two.png", "docs-index.png"]
    asked = (out / "docs-guide-one two.png").read_bytes().decode("latin-1")
    assert "--headless" in asked and "/site/guide/one%20two.html" in asked


def test_docs_screenshots_say_what_is_missing(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    browser(tmp_path, FAKE, monkeypatch)
    out = ["--site", str(site), "--out", str(tmp_path / "out")]
    assert screenshots.main([*out, "index.html", "nowhere.html"]) == screenshots.STATUS_FAILED
    assert "nowhere.html does not exist" in capsys.readouterr().err
    browser(tmp_path, "#!/bin/sh\necho no display >&2\nexit 5\n", monkeypatch)
    assert screenshots.main([*out, "index.html"]) == screenshots.STATUS_FAILED
    said = capsys.readouterr().err
    assert "status 5" in said and "no display" in said
    assert not list((tmp_path / "out").iterdir())  # a picture of an earlier run is no picture of this one


def test_docs_screenshots_without_a_browser(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("BROWSER", raising=False)
    assert screenshots.main(["--site", str(site), "--out", str(tmp_path / "out")]) == screenshots.STATUS_NO_BROWSER
    assert "none of chromium" in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_docs_screenshots_by_a_real_browser(site: Path, tmp_path: Path) -> None:
    found = screenshots.find_browser()
    if found is None:
        pytest.skip("NOT RUN IN A BROWSER: no Chromium here (apt-get install chromium, or BROWSER=...)")
    picture = tmp_path / "page.png"
    screenshots.take(found, site / "index.html", picture, (400, 300))
    header = picture.read_bytes()[:24]
    assert int.from_bytes(header[16:20], "big") == 400 and int.from_bytes(header[20:24], "big") == 300
