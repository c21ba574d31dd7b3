"""docker/deep_ep: both distributions build, own only what they say, and do what their READMEs promise."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from uccl_ep.drop_in import names
from uccl_ep.drop_in.names import PACKAGES, TOP_LEVEL

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "docker" / "deep_ep"
HOOK = PACKAGE / "hook"
pytestmark = pytest.mark.timeout(120)  # pip runs in processes of its own
SHOW = (
    "import deep_ep, sys; from deep_ep.utils import EventHandle, EventOverlap; import deep_ep_cpp, deep_ep.buffer; "
    "print(deep_ep.__version__, deep_ep.__spec__.origin, 'torch' in sys.modules)"
)


def wheel(sources: Path, tmp_path: Path) -> Path:
    """Builds a copy of `sources`, so that no build folder appears in the tree."""
    copy, out = tmp_path / "sources", tmp_path / "wheels"
    shutil.copytree(sources, copy)
    options = ["--no-deps", "--no-build-isolation", "--disable-pip-version-check", "-q"]
    run([sys.executable, "-m", "pip", "wheel", *options, "-w", str(out), str(copy)])
    (built,) = out.glob("*.whl")
    return built


def run(command: list[str], **environment: str) -> str:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("UCCL_EP_", "PYTHON"))}
    done = subprocess.run(command, env={**inherited, **environment}, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def owned(built: Path) -> set[str]:
    """The files of a wheel, without its own description of itself."""
    return {name for name in zipfile.ZipFile(built).namelist() if ".dist-info/" not in name}


def install(built: Path, folder: Path) -> None:
    options = ["--no-deps", "--no-index", "--disable-pip-version-check", "-q"]
    run([sys.executable, "-m", "pip", "install", *options, "--target", str(folder), str(built)])


def thin_files() -> set[str]:
    """One for each package or module at the top; what is below comes into being as it is imported."""
    answered = TOP_LEVEL - {"nixl_ep"}  # which only the hook answers
    return {f"{name}/__init__.py" if name in PACKAGES else f"{name}.py" for name in answered}


@pytest.mark.slow
def test_distribution_package_is_deep_ep(tmp_path: Path) -> None:
    built = wheel(PACKAGE, tmp_path)
    assert built.name.startswith("uccl_ep_deep_ep-")
    assert owned(built) == thin_files()
    site = tmp_path / "site"
    install(built, site)
    version, origin, torch_loaded = run([sys.executable, "-c", SHOW], PYTHONPATH=f"{site}:{ROOT}").split()
    assert "+uccl.ep." in version and origin == str(site / "deep_ep" / "__init__.py")
    more = "import deep_ep, importlib.metadata as m, deep_ep_v25.buffers.ep; from deep_ep.utils.math import align; "
    more += "print(m.version('deep_ep'), deep_ep_v25.__version__, align(5, 4))"
    assert run([sys.executable, "-c", more], PYTHONPATH=f"{site}:{ROOT}").split() == [
        names.version_of("deep_ep"), names.version_of("deep_ep_v25"), "8",
    ]  # fmt: skip
    assert torch_loaded == "True"  # by the event classes, not by the import of deep_ep
    lone = "import deep_ep, sys; print('torch' in sys.modules, sorted(deep_ep.__all__)[0])"
    assert run([sys.executable, "-c", lone], PYTHONPATH=f"{site}:{ROOT}").split()[0] == "False"


@pytest.mark.slow
def test_distribution_hook_owns_two_files_and_obeys_the_variable(tmp_path: Path) -> None:
    built = wheel(HOOK, tmp_path)
    assert owned(built) == {"uccl_ep_as_deep_ep.pth", "uccl_ep_hook.py"}
    site = tmp_path / "site"
    install(built, site)
    # Python reads .pth files of site folders only, so this folder is made one. Another deep_ep in it stays as it is.
    theirs = site / "deep_ep"
    theirs.mkdir()
    (theirs / "__init__.py").write_text("__version__ = 'theirs'\n")
    show = "import deep_ep; print(deep_ep.__version__)"
    places = [str(site), str(ROOT), sysconfig.get_path("purelib")]
    program = f"import site, sys; sys.path[:0] = {places[1:]!r}; site.addsitedir({places[0]!r}); {show}"
    assert run([sys.executable, "-c", program]).strip() == "theirs"
    assert run([sys.executable, "-c", program], UCCL_EP_AS_DEEP_EP="0").strip() == "theirs"
    assert "+uccl.ep." in run([sys.executable, "-c", program], UCCL_EP_AS_DEEP_EP="1")
    assert (theirs / "__init__.py").read_text() == "__version__ = 'theirs'\n"
    # Without uccl_ep the file must not disturb an interpreter that starts.
    alone = f"import site; site.addsitedir({str(site)!r}); {show}"
    assert run([sys.executable, "-I", "-S", "-c", alone], UCCL_EP_AS_DEEP_EP="1").strip() == "theirs"
