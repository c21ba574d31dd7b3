"""docker/install.sh in a clean Debian: a wheel runs after `run` and `package`, C++20 compiles after `build`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docker import clean_root
from tests.docker.clean_root import ROOT, SOURCES, CleanRoot
from tests.packaging.wheel import built_wheel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]  # a system, a wheel and torch are installed
INSTALL_S = 1200  # torch is unpacked, where others use the cores too
# One checked exchange among two ranks, with what was installed and nothing else.
CHECK = """
from uccl_ep import run_ranks
from uccl_ep.examples.launch import step
print(*run_ranks(2, step.run), sep="\\n")
"""


def test_docker_install_in_a_clean_root() -> None:
    why = clean_root.unavailable()
    if why:
        pytest.skip(f"NOT RUN: {why}")
    wheel = built_wheel()
    install = f"{SOURCES}/docker/install.sh"
    with CleanRoot() as root:
        assert root.run(["sh", "-c", "command -v python3 || command -v g++ || echo bare"]) == "bare\n"
        assert "python3" in root.run([install, "run"])
        said = root.run([install, "package"], limit_s=INSTALL_S, WHEEL=root.put(wheel))
        assert "uccl-ep 0." in said and "torch 2." in said
        assert "UCCL_EP_TIMEOUT_S" in root.run(["/opt/uccl-ep/bin/uccl-ep", "env"], COLUMNS="200")
        judged = json.loads(root.run(["/opt/uccl-ep/bin/uccl-ep", "doctor", "--require", "cpu", "--json"]))
        assert judged["satisfied"] and judged["paths"]["cpu"]["state"] in ("ok", "slow")
        assert root.run(["/opt/uccl-ep/bin/python", "-c", CHECK]).count("came back right") == 2
        assert root.run(["sh", "-c", "command -v g++ || echo bare"]) == "bare\n", "a wheel needs no compiler"

        assert "g++" in root.run([install, "build"])
        assert "nothing to install" in root.run([install])
        program = "#include <version>\\nint main() { return __cplusplus < 202002L; }"
        root.run(["sh", "-c", f"printf '{program}' >/tmp/a.cpp && g++ -std=c++20 /tmp/a.cpp -o /tmp/a && /tmp/a"])


def test_docker_install_into_a_fresh_environment(tmp_path: Path) -> None:
    """What stands for the clean root where that cannot be made: everything but apt. `make tour` does the same."""
    prefix = tmp_path / "environment"
    command = ["timeout", str(INSTALL_S), str(ROOT / "docker/install.sh"), "package"]  # pip ends with it
    environment = {
        "PREFIX": str(prefix),
        "WHEEL": str(built_wheel()),
        "PYTHON": sys.executable,
        "PATH": "/usr/bin:/bin",
    }
    done = subprocess.run(command, env=environment | clean_root.told(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    ran = subprocess.run(
        [prefix / "bin/python", "-c", CHECK], capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    assert ran.returncode == 0 and ran.stdout.count("came back right") == 2, ran.stdout + ran.stderr
