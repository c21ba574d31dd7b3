"""What a type checker says of programs that call Buffer's dispatches; the overloads are the real signatures."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from uccl_ep import Buffer, call_types

PROGRAM = """
import torch
import uccl_ep
from uccl_ep import Buffer

def main(x: torch.Tensor, scales: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, fp8: bool) -> torch.Tensor:
    buffer = Buffer(uccl_ep.ThreadGroup.create(1)[0], 64 << 20)
    per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(ids, 8)
    rows, recv_ids, recv_weights, counts, handle, event = buffer.dispatch(
        x, None, per_rank, per_node, in_rank, per_expert, ids, weights
    )
    reveal_type(rows)  # Tensor
    reveal_type(counts)  # list[int]
    reveal_type(handle)  # uccl_ep.throughput.handle.ThroughputHandle
    event.current_stream_wait()
    combined, combined_weights, _ = buffer.combine(rows * 2, handle, recv_weights)
    reveal_type(combined)  # Tensor
    buffer.combine(rows, handle, bias=(combined, None))

    pair, *_, other, _ = buffer.dispatch((x, scales), num_tokens_per_rank=per_rank, is_token_in_rank=in_rank)
    reveal_type(pair)  # tuple[Tensor, Tensor]
    again = buffer.dispatch(x, handle)
    reveal_type(again[0])  # Tensor
    reveal_type(again[1])  # None
    reveal_type(buffer.dispatch((x, scales), handle=handle)[0])  # tuple[Tensor, Tensor]
    reveal_type(buffer.internode_dispatch(x, topk_idx=ids)[0])  # Tensor
    reveal_type(buffer.internode_combine(rows, handle)[0])  # Tensor

    packed = buffer.low_latency_dispatch(x, ids, 128, 8)
    reveal_type(packed[0])  # tuple[Tensor, Tensor]
    reveal_type(buffer.low_latency_dispatch(x, ids, 128, 8, use_fp8=True, round_scale=True)[0])  # tuple[Tensor, Tensor]
    reveal_type(buffer.low_latency_dispatch(x, ids, 128, 8, use_fp8=False, use_nvfp4=True)[0])  # tuple[Tensor, Tensor]
    reveal_type(buffer.low_latency_dispatch(x, ids, 128, 8, use_fp8=fp8)[0])  # Any
    rows, count, made, event, hook = buffer.low_latency_dispatch(x, ids, 128, 8, use_fp8=False, return_recv_hook=True)
    reveal_type(rows)  # Tensor
    result, event, hook = buffer.low_latency_combine(rows, ids, weights, made)
    return result
"""

WRONG = {
    "buffer.dispatch(x)[0].shape; buffer.dispatch((x, x))[0].shape": 'has no attribute "shape"',
    "buffer.dispatch([x])": 'No overload variant of "__call__" of "DispatchCall"',
    "buffer.dispatch(x, num_worst_token=1)": 'No overload variant of "__call__" of "DispatchCall"',
    "buffer.dispatch(x, buffer.dispatch(x)[4], topk_idx=x)": 'No overload variant of "__call__" of "DispatchCall"',
    "buffer.combine((x, x), buffer.dispatch(x)[4])": 'Argument 1 to "__call__" of "CombineCall"',
    "buffer.combine(x, buffer)": 'Argument 2 to "__call__" of "CombineCall"',
    "buffer.low_latency_dispatch(x, x, 8)": 'No overload variant of "__call__" of "LowLatencyDispatchCall"',
    "buffer.low_latency_dispatch(x, x, 8, 8)[0].shape": 'has no attribute "shape"',
}


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What mypy --strict says of each program, by its name; one run for all."""
    folder = tmp_path_factory.mktemp("programs")
    head = "import torch\nfrom uccl_ep import Buffer\n\ndef main(buffer: Buffer, x: torch.Tensor) -> None:\n    "
    programs = {"good": PROGRAM.lstrip(), **{f"wrong{i}": f"{head}{code}\n" for i, code in enumerate(WRONG)}}
    for name, text in programs.items():
        (folder / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent", "--no-pretty"]
    done = subprocess.run(
        [*command, *(f"{name}.py" for name in programs)], cwd=folder, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 1 and not done.stderr, done.stdout + done.stderr
    said: dict[str, list[str]] = {name: [] for name in programs}
    for line in done.stdout.splitlines():
        if match := re.match(r"(\w+)\.py:(\d+): (error|note): (.*)", line):
            said[match[1]].append(f"{match[2]}: {match[3]}: {match[4]}")
    return said


@pytest.mark.slow
@pytest.mark.timeout(300)  # mypy reads torch, once for both
def test_call_types_a_program_is_checked_without_a_cast(judged: dict[str, list[str]]) -> None:
    wanted = [
        f'{number}: note: Revealed type is "{line.partition("  # ")[2]}"'
        for number, line in enumerate(PROGRAM.lstrip().splitlines(), 1)
        if "reveal_type" in line
    ]
    said = [re.sub(r"torch\._tensor\.|builtins\.", "", line) for line in judged["good"]]
    assert said == wanted


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_call_types_what_cannot_be_is_an_error(judged: dict[str, list[str]]) -> None:
    for i, words in enumerate(WRONG.values()):
        errors = [line for line in judged[f"wrong{i}"] if ": error: " in line]
        assert any(words in error for error in errors), (list(WRONG)[i], judged[f"wrong{i}"])


def overloads(name: str) -> list[list[tuple[str, str]]]:
    """(name, default) of every parameter of each overload of a class, by name: kinds and order may differ."""
    tree = ast.parse(Path(inspect.getfile(call_types)).read_text(encoding="utf-8"))
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    made = []
    for function in found.body:
        if isinstance(function, ast.FunctionDef):
            a = function.args
            named: list[Any] = [None] * (len(a.args) - len(a.defaults)) + a.defaults
            pairs = zip([*a.args, *a.kwonlyargs], [*named, *a.kw_defaults], strict=True)
            made.append([(arg.arg, "" if default is None else ast.unparse(default)) for arg, default in pairs])
    return made


@pytest.mark.parametrize(
    "name, method, count",
    [
        ("DispatchCall", "dispatch", 4),
        ("CombineCall", "combine", 1),
        ("LowLatencyDispatchCall", "low_latency_dispatch", 4),
    ],
)
def test_call_types_are_the_signatures(name: str, method: str, count: int) -> None:
    real = inspect.signature(getattr(Buffer, method)).parameters.values()
    names = [p.name for p in real]
    defaults = {p.name: "" if p.default is p.empty else repr(p.default) for p in real}
    found = overloads(name)
    assert len(found) == count
    for parameters in found:
        assert [parameter for parameter, _ in parameters] == names
        for parameter, default in parameters:  # an overload may demand what the method does not
            assert default == defaults[parameter] or (parameter in ("handle", "use_fp8", "use_nvfp4") and default == "")


def test_call_types_methods_are_left_as_they_are() -> None:
    for decorate in (call_types.dispatch_call, call_types.combine_call, call_types.low_latency_dispatch_call):
        method: Any = decorate(main := lambda self: None)
        assert method is main
    assert "Sends each token once" in (Buffer.dispatch.__doc__ or "")
    assert Buffer.internode_dispatch is Buffer.dispatch and Buffer.internode_combine is Buffer.combine
