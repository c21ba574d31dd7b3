"""What errors tell to install: the packages that pyproject.toml has for an extra, since no index has uccl-ep."""

from __future__ import annotations

import re
import shlex
import sys
from importlib import metadata
from pathlib import Path

import pytest

from uccl_ep.system.extras import install

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[3]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", ["cuda12", "cuda13", "rocm", "rdma", "metrics", "plots", "mpi"])
def test_extras_are_told_as_what_pip_takes(extra: str) -> None:
    words = shlex.split(install(extra))  # as a shell would read them: nothing of it is a redirection
    assert words == ["pip", "install", *EXTRAS[extra]]


def test_extras_of_a_package_that_is_only_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", absent)
    assert install("rdma") == "in its checkout: pip install '.[rdma]'"


def test_extras_no_source_tells_to_install_from_an_index_that_has_no_uccl_ep() -> None:
    """Also in pages and examples; pyproject.toml names its own extras so."""
    told = re.compile(r"pip install (?:-\S+ )*'?uccl-ep")
    files = [p for d in ("uccl_ep", "docs/pages", "docker", "tests/integrations") for p in (ROOT / d).rglob("*")]
    files = [
        p
        for p in [*files, ROOT / "README.md"]
        if p.suffix in (".py", ".md", ".sh", ".yaml") and not p.name.startswith("test_")
    ]
    assert len(files) > 200
    wrong = [str(p.relative_to(ROOT)) for p in files if told.search(p.read_text(encoding="utf-8"))]
    assert wrong == []
