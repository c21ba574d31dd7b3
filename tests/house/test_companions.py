"""Every source file has a test of the same name, in the same place of the tests' tree; every folder has a README,
which names what is in it."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import PurePosixPath

from tests.house.source import NATIVE, PRODUCT, ROOT, files, judge, read

# Python files that only export or start; what they export is tested where it lives.
_NO_TEST = {"__init__.py", "__main__.py"}
_MOST_LINES_OF_INIT = 80
_MOST_MODULES_OF_ROOT = 12


def wanted(path: str) -> list[str]:
    """The tests of which one must exist."""
    source = PurePosixPath(path)
    folder = PurePosixPath("tests") / source.parent
    suffixes = [".py"] if source.suffix == ".py" else [".cpp", ".py"]
    return [str(folder / f"test_{source.stem}{suffix}") for suffix in suffixes]


def test_house_every_source_has_its_test() -> None:
    found = {}
    for path in files(PRODUCT, [*NATIVE, ".py"]):
        if PurePosixPath(path).name in _NO_TEST:
            if read(path).count("\n") > _MOST_LINES_OF_INIT:
                found[path] = f"over {_MOST_LINES_OF_INIT} lines: move the code into a module that has a test"
        elif not any((ROOT / test).is_file() for test in wanted(path)):
            found[path] = f"no {' or '.join(wanted(path))}"
    judge("test", found)


def test_house_every_folder_has_a_readme() -> None:
    folders = {str(PurePosixPath(p).parent) for p in files(PRODUCT, [*NATIVE, ".py"])} | {*PRODUCT, "tests", "docker"}
    found = dict.fromkeys(folders, "no README.md: what it is, what not, start reading here")
    judge("readme", {f: what for f, what in found.items() if not (ROOT / f / "README.md").is_file()})


def _unnamed(folder: str) -> list[str]:
    """Modules and rooms of a folder that its README does not name. A pattern such as `transport*.py` names several."""
    text = read(f"{folder}/README.md")
    named = re.findall(r"`([\w./*]+)`", text)
    entries = [f"{path.name}/" if path.is_dir() else path.name for path in (ROOT / folder).iterdir()]
    entries = [e for e in entries if e.endswith(".py") or (ROOT / folder / e / "README.md").is_file()]
    return sorted(e for e in entries if e not in _NO_TEST and not any(fnmatch(e, pattern) for pattern in named))


def test_house_readmes_name_every_module_and_room() -> None:
    folders = {str(PurePosixPath(p).parent) for p in files(["uccl_ep"], [".py"])}
    found = {folder: missing for folder in folders if (missing := _unnamed(folder))}
    judge("named", {folder: f"its README does not name {', '.join(missing)}" for folder, missing in found.items()})


def test_house_the_root_stays_small() -> None:
    modules = [path for path in files(["uccl_ep"], [".py"]) if path.count("/") == 1]
    assert len(modules) <= _MOST_MODULES_OF_ROOT, f"{len(modules)} modules in the root; rooms: uccl_ep/README.md"


def test_house_companion_names() -> None:
    assert wanted("uccl_ep/tools/demo/model.py") == ["tests/uccl_ep/tools/demo/test_model.py"]
    assert wanted("proxy/ring/consumer.h") == [
        "tests/proxy/ring/test_consumer.cpp",
        "tests/proxy/ring/test_consumer.py",
    ]
    assert wanted("kernels/host/runtime.cpp")[0] == "tests/kernels/host/test_runtime.cpp"
