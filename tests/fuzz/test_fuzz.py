"""Coverage-guided fuzzing of the native parsers (slow): libFuzzer with AddressSanitizer and UBSan.

UCCL_EP_FUZZ_SECONDS per target (20 unless set). An input that breaks something is left in build/fuzz/found: copy it to
tests/fuzz/corpus/<target>, where test_corpus.cpp replays it for ever. clang comes from docker/install.sh; without it
these tests are skipped in a loud way, which CI does not accept (UCCL_EP_REQUIRE_TOOLS=1 makes it a failure).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TARGETS = ("tcp_frames", "tcp_handshake", "arrivals", "addresses", "memory")
SECONDS = int(os.environ.get("UCCL_EP_FUZZ_SECONDS", "20"))
_MOST_BYTES = {"tcp_frames": 16384, "tcp_handshake": 256, "arrivals": 4608, "addresses": 512, "memory": 100}
# Kernels as a CPU runs them.
_FLAGS = ["-std=c++20", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
_FLAGS += ["-DUCCL_SIMT_WARP=1", "-ffp-contract=off", "-D__SANITIZE_ADDRESS__=1"]  # as GCC says it (kernels/host)
_FOLDERS = ("engine", "memory", "transport")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(SECONDS + 500)]  # the first one builds


def compiler() -> str:
    """clang++ with libFuzzer.

    Raises:
        Skipped, or Failed where tools are required: there is none.
    """
    for name in ("clang++", *(f"clang++-{n}" for n in range(21, 13, -1))):
        if path := shutil.which(name):
            probe = [path, "-fsanitize=fuzzer,address", "-x", "c++", "-", "-o", os.devnull]
            source = 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }'
            if subprocess.run(probe, input=source.encode(), capture_output=True).returncode == 0:
                return path
    why = "NOT RUN: no clang++ with libFuzzer, so nothing was fuzzed: run docker/install.sh"
    if os.environ.get("UCCL_EP_REQUIRE_TOOLS", "0") != "0":
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    clang, folder = compiler(), tmp_path_factory.mktemp("fuzzer")
    sources = [p for name in _FOLDERS for p in sorted((ROOT / "proxy" / name).rglob("*.cpp"))]
    sources += [p for name in ("host", "launch") for p in sorted((ROOT / "kernels" / name).glob("*.cpp"))]
    sources += [ROOT / "tests/native/check.cpp"]
    for name in ("fuzz", "kernels", "kernels/throughput", "kernels/low_latency"):
        sources += [p for p in sorted((ROOT / "tests" / name).glob("*.cpp")) if not p.name.startswith("test_")]
    includes = [f"-I{ROOT / p}" for p in ("proxy", "", "tests")]

    def compile_one(numbered: tuple[int, Path]) -> Path:
        number, source = numbered
        target = folder / f"{number}-{source.stem}.o"
        command = [clang, *_FLAGS, "-fsanitize=fuzzer-no-link", *includes, "-c", str(source), "-o", str(target)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr[-4000:]}"
        return target

    with ThreadPoolExecutor(2) as pool:
        objects = [str(p) for p in pool.map(compile_one, enumerate(sources))]
    program = folder / "fuzzer"
    link = [clang, *_FLAGS, "-fsanitize=fuzzer", *objects, "-o", str(program), "-lpthread", "-ldl"]
    done = subprocess.run(link, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return program


@pytest.mark.parametrize("target", TARGETS)
def test_fuzz(target: str, fuzzer: Path, tmp_path: Path) -> None:
    found = ROOT / "build" / "fuzz" / "found" / target
    found.mkdir(parents=True, exist_ok=True)
    corpus = [tmp_path, *(p for p in [ROOT / "tests/fuzz/corpus" / target] if p.is_dir())]
    command = [str(fuzzer), f"-max_total_time={SECONDS}", f"-max_len={_MOST_BYTES[target]}", "-print_final_stats=1"]
    # Whatever a target's own Allowance says, nothing large at all; and patience on a machine that others use too.
    command += [
        f"-malloc_limit_mb={64 if target == 'memory' else 1}",
        "-rss_limit_mb=2000",
        "-timeout=60",
        f"-artifact_prefix={found}/",
    ]
    command += [str(p) for p in corpus]
    environment = dict(os.environ, UCCL_EP_FUZZ_TARGET=target, UCCL_EP_FUZZ_SEEDS=str(tmp_path))
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment)
    output = done.stderr
    assert done.returncode == 0, f"an input is in {found}\n{output[-6000:]}"
    executed = re.search(r"number_of_executed_units: (\d+)", output)
    edges, work = re.findall(r"cov: (\d+)", output), re.search(r"^work: (\d+)", output, re.MULTILINE)
    assert executed and edges and work
    print(f"fuzzed {target:14} {SECONDS:4} s {executed[1]:>9} executions {edges[-1]:>6} edges {work[1]:>9} "
          "frames, connections, immediates, texts or words")  # fmt: skip
    if ends := re.search(r"^memory: (.*)", output, re.MULTILINE):
        print(f"memory ended: {ends[1]}")
    assert int(executed[1]) > 100 and int(work[1]) > 100
