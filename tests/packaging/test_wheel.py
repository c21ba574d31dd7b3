"""The wheel that users get: its contents, the symbols and the C library that it asks for, its size."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.packaging.wheel import HOUSE, ROOT, Module, built_wheel, parse_module, read_module, sources

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
KIB = 1024
MOST_BYTES = 2048 * KIB  # the wheel; of which the module, compressed, is about two thirds
MOST_MODULE_BYTES = 4096 * KIB
# The C library, its loader and the compiler's two: what every Linux has. Networks and GPUs are opened when used.
LIBRARIES = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libstdc++.so.6", "libgcc_s.so.1"}
LOADERS = {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
# Of Debian 12, where CI builds; auditwheel's name for it is manylinux_2_35. Releases are built for 2.28.
NEWEST = {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13), "GCC": (12, 0, 0)}
STRANGE = re.compile(r"^(ibv_|rdma_|efadv_|fi_|mlx5dv_|cu[A-Z]|cuda|nvrtc|hip[A-Z]|hsa_|at::|c10|nccl)")
NOT_PYTHON = re.compile(r"(^|/)(tests?|build|__pycache__|\.git)/|\.(cpp|cmake|pyc|o|a|whl)$|CMakeLists|Makefile")


@pytest.fixture(scope="module")
def wheel() -> Path:
    return built_wheel()


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if not name.endswith("/")]


@pytest.fixture(scope="module")
def module(wheel: Path, names: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    (name,) = [name for name in names if name.endswith(".so")]
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(name, tmp_path_factory.mktemp("wheel")))


def strays(names: list[str]) -> list[str]:
    """What does not belong into a wheel."""
    inside = re.compile(r"uccl_ep/|uccl_ep-[\w.]+\.dist-info/")
    return [name for name in names if not inside.match(name) or NOT_PYTHON.search(name)]


def wrong_symbols(module: Module) -> list[str]:
    """What would not load, or load something that a machine need not have."""
    wrong = [f"library {name}" for name in sorted(module.needed - LIBRARIES - LOADERS)]
    wrong += [f"search path {folder}" for folder in sorted(module.search)]
    wrong += [f"symbol {name}" for name in sorted(module.undefined) if STRANGE.match(name)]
    wrong += [
        f"{family} {'.'.join(map(str, asked))}, newest allowed {NEWEST.get(family)}"
        for family, asked in module.versions.items()
        if asked > NEWEST.get(family, ())
    ]
    return wrong


@pytest.mark.slow
@pytest.mark.timeout(1600)  # compiles the native module, once for all of them
class TestWheel:
    """What slow tests see in it."""

    def test_wheel_holds_the_package_and_nothing_else(self, names: list[str]) -> None:
        assert strays(names) == []
        python = [name for name in sources() if name.startswith("uccl_ep/") and not name.endswith(".so")]
        assert sorted(set(python) - set(names)) == [], "every file of the package is in it"
        metadata = {name.rpartition("/")[2] for name in names if ".dist-info/" in name}
        assert {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "LICENSE"} <= metadata

    def test_wheel_holds_every_header_that_kernels_are_compiled_from(self, wheel: Path, names: list[str]) -> None:
        wanted = [n for n in sources() if re.match(r"(kernels|proxy/wire|proxy/ring)/.*\.h$", n)]
        held = [name.removeprefix("uccl_ep/include/") for name in names if name.startswith("uccl_ep/include/")]
        assert sorted(held) == sorted(wanted) and len(wanted) > 20
        with zipfile.ZipFile(wheel) as archive:
            for name in wanted:
                assert archive.read(f"uccl_ep/include/{name}") == (ROOT / name).read_bytes()

    def test_wheel_module_asks_for_what_every_linux_has(self, module: Path) -> None:
        assert wrong_symbols(read_module(module)) == []

    def test_wheel_is_named_for_the_c_library_it_needs(self, wheel: Path, module: Path) -> None:
        tags = re.findall(r"manylinux_(\d+)_(\d+)_(?:x86_64|aarch64)", wheel.name)
        assert tags, f"{wheel.name}: not a manylinux wheel"
        asked = read_module(module).versions["GLIBC"]
        assert all(asked <= (int(major), int(minor)) for major, minor in tags)

    def test_wheel_module_says_nothing_of_the_machine_that_built_it(self, module: Path) -> None:
        content = module.read_bytes()
        assert str(HOUSE).encode() not in content and str(ROOT).encode() not in content
        sections = subprocess.run(["readelf", "-SW", module], capture_output=True, text=True, check=True).stdout
        assert ".debug_info" not in sections

    def test_wheel_keeps_to_its_size(self, wheel: Path, module: Path) -> None:
        assert wheel.stat().st_size <= MOST_BYTES, f"{wheel.stat().st_size / KIB:.0f} KiB"
        assert module.stat().st_size <= MOST_MODULE_BYTES, f"{module.stat().st_size / KIB:.0f} KiB"


@pytest.mark.slow
@pytest.mark.timeout(1900)  # it may have to build the wheel, and pip asks an index for some twenty packages
def test_wheel_goes_with_a_source_distribution_a_bill_of_materials_and_hashes(wheel: Path) -> None:
    """docker/release.sh, by value. What it makes stays in build/release."""
    folder = ROOT / "build" / "release"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copy(wheel, folder)
    done = subprocess.run(
        [ROOT / "docker" / "release.sh", folder],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    sums = dict(reversed(line.split("  ")) for line in (folder / "SHA256SUMS").read_text().splitlines())
    assert sums == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.name != "SHA256SUMS"
    }
    (source,) = folder.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {*sources()} <= held, "every source of the wheel is in the source distribution"
    assert not [name for name in held if name.startswith(("tests/", "build/", ".git"))]

    bill = json.loads((folder / "uccl-ep.cdx.json").read_text(encoding="utf-8"))
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "uccl-ep")
    parts = {part["name"].lower().replace("_", "-"): part for part in bill["components"]}
    needed = {re.split(r"[<>=]", line)[0] for line in PROJECT["project"]["dependencies"]}
    assert len(needed) > 4 and needed <= parts.keys()
    for part in parts.values():
        assert part["purl"].startswith("pkg:pypi/")
        assert [h["alg"] for r in part["externalReferences"] for h in r["hashes"]] == ["SHA-256"], part["name"]


def test_wheel_check_of_contents_can_fail() -> None:
    assert strays(["uccl_ep/buffer.py", "uccl_ep-0.1.0.dist-info/METADATA", "uccl_ep/include/kernels/a.h"]) == []
    for name in ("tests/a.py", "uccl_ep/tests/a.py", "kernels/a.h", "uccl_ep/x.cpp", "uccl_ep/__pycache__/a.pyc",
                 "uccl_ep.libs/libibverbs.so.1", "bench/a.py", "uccl_ep/build/x",
                 "uccl_ep/CMakeLists.txt"):  # fmt: skip
        assert strays([name]) == [name]


def test_wheel_check_of_symbols_can_fail() -> None:
    dynamic = " 0x01 (NEEDED) Shared library: [libc.so.6]\n 0x01 (NEEDED) Shared library: [libstdc++.so.6]\n"
    symbols = "  1: 0 0 FUNC GLOBAL DEFAULT UND memcpy@GLIBC_2.14 (2)\n  2: 0 0 NOTYPE GLOBAL DEFAULT UND PyLong_Type\n"
    symbols += (
        "  3: 0 0 FUNC GLOBAL DEFAULT UND dlopen@GLIBC_2.34 (3)\n  4: 10 9 FUNC GLOBAL DEFAULT 12 PyInit__native\n"
    )
    good = parse_module(dynamic, symbols)
    assert good.undefined == {"memcpy", "PyLong_Type", "dlopen"} and good.versions == {"GLIBC": (2, 34)}
    assert wrong_symbols(good) == []
    assert wrong_symbols(parse_module(dynamic.replace("libc.so.6", "libibverbs.so.1"), symbols))
    assert wrong_symbols(parse_module(dynamic + " 0x1d (RUNPATH) Library runpath: [/opt/x]\n", symbols))
    assert wrong_symbols(parse_module(dynamic, symbols.replace("memcpy@GLIBC_2.14", "ibv_open_device@IBVERBS_1.1")))
    assert wrong_symbols(parse_module(dynamic, symbols.replace("2.34", "2.38")))
    assert wrong_symbols(parse_module(dynamic, symbols.replace("GLIBC_2.34", "GLIBCXX_3.4.32")))
