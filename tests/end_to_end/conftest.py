"""One crew of rank processes for all tests of the session that want processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.end_to_end.world import Crew


@pytest.fixture(scope="session")
def crew() -> Iterator[Crew]:
    """Up to eight ranks as processes."""
    processes = Crew(8)
    yield processes
    processes.close()
