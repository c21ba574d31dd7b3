"""vLLM's OpenAI server as a process with its ranks, and what a client asks of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

_START_LIMIT_S = 600.0  # four ranks import vLLM on two cores
_ANSWER_LIMIT_S = 300.0
_POLL_S = 0.25
_END_S = 20.0
_TAIL_CHARACTERS = 6000


class ServerFailed(Exception):
    """It ended or did not answer in time; the message ends with its log."""


@dataclass(frozen=True)
class Answer:
    """What a server made of one prompt.

    Attributes:
        tokens: ids, greedily chosen. logprobs: of these tokens. text: the same, as the tokenizer has it.
    """

    tokens: list[int]
    logprobs: list[float]
    text: str


@dataclass(frozen=True)
class Request:
    """A prompt, and the data-parallel rank that serves it."""

    prompt: str
    rank: int
    tokens: int


class Server:
    """Started by `with`; when the body begins, it answers.

    Args:
        python: with vLLM. model: a folder. ranks: data-parallel ranks that share the experts; 1: a plain server.
        plugin: what VLLM_PLUGINS says. environment: more variables. log: the file that it writes to.
    """

    def __init__(
        self, python: Path, model: Path, ranks: int, plugin: str, environment: dict[str, str], log: Path
    ) -> None:
        self.ranks, self.log, self.port = ranks, log, free_port()
        shared = ["--data-parallel-size", str(ranks), "--enable-expert-parallel"] if ranks > 1 else []
        self._command = [
            str(python), "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(model), "--served-model-name", "small", "--dtype", "bfloat16", "--max-model-len", "256",
            "--max-num-seqs", "8", "--enforce-eager", "--no-enable-prefix-caching",
            "--host", "127.0.0.1", "--port", str(self.port), *shared,
        ]  # fmt: skip
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("UCCL_EP_", "PYTHON", "VLLM_"))}
        self._environment = inherited | {
            "VLLM_PLUGINS": plugin,
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_HOST_IP": "127.0.0.1",
            "GLOO_SOCKET_IFNAME": "lo",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",  # ranks share the cores
            "TOKENIZERS_PARALLELISM": "false",
            "CUDA_VISIBLE_DEVICES": "",
            **environment,
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Server:
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        deadline = time.monotonic() + _START_LIMIT_S
        try:
            while not self._healthy():
                if self._process.poll() is not None:
                    raise ServerFailed(f"the server ended with status {self._process.returncode}\n{self._tail()}")
                if time.monotonic() > deadline:
                    raise ServerFailed(f"the server did not answer within {_START_LIMIT_S:.0f} s\n{self._tail()}")
                time.sleep(_POLL_S)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()

    def ask(self, request: Request) -> Answer:
        """One completion, on the rank that the request names.

        Raises:
            ServerFailed: there was no answer.
        """
        body = {
            "model": "small", "prompt": request.prompt, "max_tokens": request.tokens, "temperature": 0, "logprobs": 0,
            "ignore_eos": True, "return_token_ids": True,
        }  # fmt: skip
        headers = {"Content-Type": "application/json"}
        if self.ranks > 1:
            headers["X-data-parallel-rank"] = str(request.rank)
        url = f"http://127.0.0.1:{self.port}/v1/completions"
        try:
            with _open(urllib.request.Request(url, json.dumps(body).encode(), headers), _ANSWER_LIMIT_S) as got:
                choice: dict[str, Any] = json.load(got)["choices"][0]
        except (OSError, urllib.error.HTTPError) as why:
            raise ServerFailed(f"no answer: {why}\n{self._tail()}") from None
        return Answer(choice["token_ids"], choice["logprobs"]["token_logprobs"], choice["text"])

    def ask_all(self, requests: list[Request]) -> list[Answer]:
        """All at the same time: their answers in order."""
        with ThreadPoolExecutor(len(requests)) as pool:
            return list(pool.map(self.ask, requests))

    def lines(self, words: str) -> list[str]:
        """Those of the log that hold the words."""
        return [line for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines() if words in line]

    def _healthy(self) -> bool:
        try:
            with _open(urllib.request.Request(f"http://127.0.0.1:{self.port}/health"), 5.0) as got:
                return bool(got.status == 200)
        except OSError:
            return False

    def _tail(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-_TAIL_CHARACTERS:]

    def _stop(self) -> None:
        """Ranks are of the server's own process group."""
        assert self._process is not None
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                break
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                continue


def _open(request: urllib.request.Request, limit_s: float) -> Any:
    """Past any proxy that the environment names: the server is on this host."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=limit_s)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
