"""Metadata of the distributions `deep_ep` and `deep_ep_v25` while uccl_ep answers for them."""

from __future__ import annotations

import os
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path

from uccl_ep.drop_in.names import VERSIONS, version_of

_NAMES = {
    package.replace("_", "-"): package for package in VERSIONS if package != "deep_ep_cpp"
}  # a module of the first


class _Answered(Distribution):
    def __init__(self, package: str) -> None:
        self._package = package

    def read_text(self, filename: str | os.PathLike[str]) -> str | None:
        if str(filename) == "METADATA":
            head = f"Metadata-Version: 2.1\nName: {self._package}\nVersion: {version_of(self._package)}\n"
            return f"{head}Summary: {self._package}, answered by uccl_ep\n"
        return f"{self._package}\n" if str(filename) == "top_level.txt" else None

    def locate_file(self, path: str | os.PathLike[str]) -> Path:
        return Path(path)  # it has no files


def distributions(context: DistributionFinder.Context | None) -> list[Distribution]:
    """The one that is asked for by name; none to who lists what is installed, such as pip."""
    name = getattr(context, "name", None) or ""
    package = _NAMES.get(name.lower().replace("_", "-").replace(".", "-"))
    return [_Answered(package)] if package else []
