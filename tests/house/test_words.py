"""What no file may say: ways to kill the process, unfinished business, this machine's paths, vendors' conditionals."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.house.source import NATIVE, PRODUCT, ROOT, code_only, files, judge, read

# Vendor conditionals in kernels/ live in these two files only.
VENDOR_FILES = ("kernels/device/simt.h", "kernels/device/backend_cuda.h")
_TEXT = (".py", ".pyi", ".toml", ".txt", ".md", ".cmake", ".sh", ".h", ".cpp", ".yml", ".json", "")
_EVERYWHERE = (*PRODUCT, "tests", "bench", "docker", "cmake", ".ci")
_ROOT_FILES = ("pyproject.toml", "CMakeLists.txt", "Makefile", "constraints.txt", "README.md", "ARCHITECTURE.md")


@dataclass(frozen=True)
class Ban:
    pattern: re.Pattern[str]
    why: str
    folders: tuple[str, ...]
    suffixes: tuple[str, ...]
    code: bool  # comments and literals may use the word


NATIVE_CODE = ("proxy", "kernels")
BANS = (
    Ban(re.compile(r"(?<![\w.>])(?:std::)?(?:abort|_?exit|quick_exit|_Exit|__trap|__builtin_trap)\s*\("),
        "ends the process or the device: report an error instead", NATIVE_CODE, NATIVE, True),
    Ban(re.compile(r"\bstd::terminate\b"), "ends the process: report an error instead", NATIVE_CODE, NATIVE, True),
    Ban(re.compile(r"\bassert\s*\("), "ends the process: report, or static_assert", NATIVE_CODE, NATIVE, True),
    Ban(re.compile(r"\bos\.(_exit|abort)\b"), "ends the process behind its cleanup", ("uccl_ep",), (".py",), False),
    Ban(re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b"), "unfinished", PRODUCT, (*NATIVE, ".py"), False),
    Ban(re.compile(r"(?<![\w.])/(?:work|root|home|Users)/\w"), "a path of one machine", _EVERYWHERE, _TEXT, False),
    Ban(re.compile(r"pypi\.org|pythonhosted|download\.pytorch|[-_]index[-_]url|--find-links"),
        "a package registry: each machine's pip knows its own", _EVERYWHERE, _TEXT, False),
)  # fmt: skip
_CONDITIONAL = re.compile(r"^[ \t]*#[ \t]*(?:if|ifdef|ifndef|elif)\b[^\n]*", re.MULTILINE)
_VENDOR = re.compile(r"CUDA|NVCC|NVRTC|__HIP|ROCM|AMDGCN|AMDGPU|__gfx|__PTX")


def ban_problems(path: str, text: str) -> dict[str, str]:
    found = {}
    for ban in BANS:
        if not path.startswith(tuple(f + "/" for f in ban.folders)) and path not in _ROOT_FILES:
            continue
        if not path.endswith(ban.suffixes) or (path in _ROOT_FILES and ban.folders is not _EVERYWHERE):
            continue
        searched = code_only(text) if ban.code else text
        match = ban.pattern.search(searched)
        if match:
            line = searched.count("\n", 0, match.start()) + 1
            found[f"{path}: {match.group().strip()}"] = f"line {line}: {ban.why}"
    return found


def vendor_problems(path: str, text: str) -> dict[str, str]:
    if path in VENDOR_FILES or not path.startswith(NATIVE_CODE):
        return {}
    lines = [line.strip() for line in _CONDITIONAL.findall(text) if _VENDOR.search(line)]
    return {path: f"vendor conditional outside {', '.join(VENDOR_FILES)}: {lines[0]}"} if lines else {}


def opening_problems(path: str, text: str) -> dict[str, str]:
    openings = ('"""', "#") if path.endswith(".py") else ("//", "/*")
    says = not text.strip() or text.lstrip().startswith(openings)
    return {} if says else {path: "the first lines do not say what the file is for"}


def test_house_forbidden_words() -> None:
    found: dict[str, str] = {}
    house = "tests/house/"  # the checks themselves spell the words
    for path in [*files(_EVERYWHERE, _TEXT), *(p for p in _ROOT_FILES if (ROOT / p).is_file())]:
        if not path.startswith(house):
            found |= ban_problems(path, read(path))
    judge("word", found)


def test_house_vendor_conditionals() -> None:
    found: dict[str, str] = {}
    for path in files(NATIVE_CODE, NATIVE):
        found |= vendor_problems(path, read(path))
    judge("vendor", found)


def test_house_files_say_what_they_are_for() -> None:
    found: dict[str, str] = {}
    for path in files([*PRODUCT, "tests", "bench"], [*NATIVE, ".py"]):
        found |= opening_problems(path, read(path))
    judge("opening", found)


def test_house_words_check_can_fail() -> None:
    assert ban_problems("proxy/a/b.cpp", "void f() { std::abort(); }")
    assert ban_problems("kernels/a/b.h", "void f() { exit (1); }")
    assert not ban_problems("proxy/a/b.cpp", '// never exit(1)\nvoid f() { on_exit(1); check("abort()"); }')
    assert ban_problems("proxy/a/b.cpp", "std::set_terminate(std::terminate);")
    assert ban_problems("proxy/a/b.h", "int x;  // " + "TO" + "DO")
    assert ban_problems("docker/x.sh", "cd /work/main")
    assert ban_problems("README.md", "pip install --index-url x")
    assert not ban_problems("README.md", "See framework/root.md")
    assert vendor_problems("kernels/device/copy.h", "#if defined(__CUDA_ARCH__)")
    assert not vendor_problems("kernels/device/simt.h", "#if defined(__CUDA_ARCH__)")
    assert not vendor_problems("kernels/device/copy.h", "#if UCCL_SIMT_WARP == 64")
    assert opening_problems("proxy/a/b.h", "#pragma once\n")
    assert not opening_problems("proxy/a/b.h", "// A thing.\n#pragma once\n")


def test_house_no_stray_files_at_the_top() -> None:
    """The top level stays what the design names."""
    folders = {"uccl_ep", "kernels", "proxy", "tests", "bench", "docker", "docs", "cmake", "shared", "build", "dist"}
    seen = {p.name for p in ROOT.iterdir() if p.is_dir() and not p.name.startswith(".")}
    assert seen <= folders | {"__pycache__"} | {n for n in seen if n.endswith(".egg-info")}, seen - folders
