"""Every integrator of versions.ini that is not run by name only, as `make test-integrations` runs it.

Skipped in a loud way where its wheels cannot be had; UCCL_EP_REQUIRE_TOOLS=1 makes that a failure.
"""

from __future__ import annotations

import pytest

from tests.integrations.installed import python_or_skip
from tests.integrations.launch import launch
from tests.integrations.report import table
from tests.integrations.versions import Integrator, integrators

CHOSEN = [one for one in integrators() if not one.by_name]


@pytest.mark.slow
@pytest.mark.timeout(1900)  # pip, and a driver that trains models on four ranks
@pytest.mark.parametrize("integrator", CHOSEN, ids=[one.name for one in CHOSEN])
def test_integrator_runs_on_us(integrator: Integrator) -> None:
    told = launch(integrator, python_or_skip(integrator))
    assert told.rows and all(row.passed for row in told.rows), "\n" + table(row.cells() for row in told.rows)
