"""The ring benchmark's host library, compiled once a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.device.ring_programs import HostLibrary, compile_host_library


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> HostLibrary:
    """Compiled with this machine's compiler."""
    folder: Path = tmp_path_factory.mktemp("ring")
    return HostLibrary(compile_host_library(folder))
