"""The environment of an integrator for a test: installed where it can be, else the test is loudly not run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.integrations.environment import Unavailable, python_of
from tests.integrations.versions import Integrator


def python_or_skip(integrator: Integrator, make: bool = True) -> Path:
    """Its Python; without `make` only where it is installed. With UCCL_EP_REQUIRE_TOOLS set it is installed anyway, and
    what cannot be installed fails the test instead of skipping it."""
    required = os.environ.get("UCCL_EP_REQUIRE_TOOLS", "0") != "0"
    try:
        return python_of(integrator, make or required)
    except Unavailable as why:
        if required:
            raise
        pytest.skip(f"NOT RUN: {integrator.name} {integrator.version}: {why}")
