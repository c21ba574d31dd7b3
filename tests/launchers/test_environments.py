"""Launchers from PyPI: what is here already is used, with its commands; what is not gets an environment, or a skip."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.launchers import environments


def test_launchers_environment_is_this_one_when_it_has_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "_make", lambda folder, requirements: pytest.fail("one was made"))
    assert environments.require("pytest>=8", "hypothesis") == Path(sys.executable)


@pytest.mark.parametrize("wanted", ["pytest==0.1", "nowhere-to-be-found"])
def test_launchers_environment_of_its_own_for_what_is_not_here(
    wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "ROOT", tmp_path)
    monkeypatch.setattr(environments, "_make", lambda folder, requirements: "no such package")
    monkeypatch.delenv("UCCL_EP_REQUIRE_TOOLS", raising=False)
    with pytest.raises(pytest.skip.Exception, match="NOT RUN: pip install .*no such package"):
        environments.require("pytest>=8", wanted)
    monkeypatch.setenv("UCCL_EP_REQUIRE_TOOLS", "1")
    with pytest.raises(pytest.fail.Exception, match="NOT RUN"):
        environments.require("pytest>=8", wanted)
