"""Metadata: the names that uccl_ep answers for have a version, only when they are asked for by name."""

from __future__ import annotations

import importlib.metadata

import pytest

from uccl_ep.drop_in import install_as_deep_ep, names, uninstall_as_deep_ep
from uccl_ep.drop_in.metadata import distributions


def test_metadata_versions_are_the_modules_as_long_as_the_hook_is_in() -> None:
    install_as_deep_ep()
    try:
        for name, package in (("deep_ep", "deep_ep"), ("deep-ep", "deep_ep"), ("DEEP.EP_v25", "deep_ep_v25")):
            assert importlib.metadata.version(name) == names.version_of(package)
        found = importlib.metadata.distribution("deep_ep")
        assert found.metadata["Name"] == "deep_ep" and found.read_text("top_level.txt") == "deep_ep\n"
        assert found.files is None and found.read_text("RECORD") is None and found.requires is None
        listed = [each.metadata["Name"] for each in importlib.metadata.distributions()]
        assert "deep_ep" not in listed  # pip and others see what is installed
        with pytest.raises(importlib.metadata.PackageNotFoundError):
            importlib.metadata.version("deep_ep_cpp")
    finally:
        uninstall_as_deep_ep()
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("deep-ep-v25")


def test_metadata_nobody_asked() -> None:
    assert distributions(None) == [] and distributions(importlib.metadata.DistributionFinder.Context()) == []
