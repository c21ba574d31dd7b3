"""Every source file has a test of the same name, in the same place of the tests' tree; every folder has a README."""

from __future__ import annotations

from pathlib import PurePosixPath

from tests.house.source import NATIVE, PRODUCT, ROOT, files, judge, read

# Python files that only export or start; what they export is tested where it lives.
_NO_TEST = {"__init__.py", "__main__.py"}
_MOST_LINES_OF_INIT = 80


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


def test_house_companion_names() -> None:
    assert wanted("uccl_ep/tools/demo/model.py") == ["tests/uccl_ep/tools/demo/test_model.py"]
    assert wanted("proxy/ring/consumer.h") == [
        "tests/proxy/ring/test_consumer.cpp",
        "tests/proxy/ring/test_consumer.py",
    ]
    assert wanted("kernels/host/runtime.cpp")[0] == "tests/kernels/host/test_runtime.cpp"
