"""Single-batch overlap of a low-latency combine: rows leave while others are still being computed.

Two libraries define it differently, by who computes. FlashInfer's grouped product raises one signal an expert
(`src_signals`); DeepGEMM's counts one up for every block of `block_m` rows (`comp_signal`). A kernel is told both the
same way: how many signals an expert has, how many rows each stands for, and the value to wait for.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from uccl_ep import checks
from uccl_ep.errors import Described, refuse

Tensor = torch.Tensor

_LOADING = "CUDA_MODULE_LOADING"
_MOST_VALUE = (1 << 31) - 1
_SMS_OF_BLOCKS, _SMS_OF_EXPERTS = 3, 32  # what the two libraries leave to the send unless told otherwise
_MOST_SMS = 1 << 16


@dataclass(frozen=True)
class Overlap:
    """What a combine's sending half waits for, and how much of the device it takes.

    Attributes:
        signals: int32 or uint32 [L * per_expert], or None: nothing is waited for.
        per_expert: signals of an expert.
        rows: rows that a signal stands for.
        value: a row may be sent once its signal is at least this.
        num_sms: blocks of the sending half, so that what computes keeps the others.
    """

    signals: Tensor | None
    per_expert: int
    rows: int
    value: int
    num_sms: int


def warn_of_lazy_loading(kind: str, environment: Mapping[str, str]) -> None:
    """Warns, once a process, where the kernel that raises the signals may be loaded only when it is launched: CUDA then
    may wait for running kernels, and the sending half that runs waits for the signals.

    Args:
        kind: of the device, "cuda" or another.
        environment: the process's, as it was before the GPU was first used.
    """
    if kind == "cuda" and environment.get(_LOADING, "").upper() != "EAGER":
        _warn_once(
            f"overlap=True with signals, and {_LOADING} is not EAGER: the first launch of a kernel that raises signals "
            f"may wait for the send that waits for them, until PeerTimeout. Start the process with {_LOADING}=EAGER "
            "and CUDA_DEVICE_MAX_CONNECTIONS=32."
        )


@functools.cache
def _warn_once(text: str) -> None:
    warnings.warn(text, stacklevel=2)


@dataclass(frozen=True)
class OverlapArguments:
    """Buffer.low_latency_combine's keywords of those names, unchecked."""

    overlap: Any
    src_signals: Any
    src_signal_expect_value: Any
    packed_recv_count: Any
    comp_signal: Any
    block_m: Any
    threshold: Any
    num_sms: Any

    def check(self, local: int, rows: int) -> Overlap | None:
        """What they say for L = `local` experts of P = `rows` rows; None without overlap.

        As in DeepEP, the others are not looked at when `overlap` is False: the caller's stream then is the order.

        Raises:
            InvalidArgument: types, sizes or a combination is wrong.
        """
        if not checks.check_bool("overlap", self.overlap):
            return None
        if self.src_signals is not None and self.comp_signal is not None:
            refuse(
                "src_signals and comp_signal",
                Described("both"),
                "given one at a time: each is a form of overlap=True by itself",
            )
        num_sms = checks.check_int("num_sms", self.num_sms, 0, _MOST_SMS)
        if self.comp_signal is not None:
            return self._by_blocks(local, rows, num_sms)
        value, signals = 0, None
        if self.src_signals is not None:
            signals = _signals("src_signals", self.src_signals, (torch.uint32, torch.int32), local, f"{local}")
            value = checks.check_int("src_signal_expect_value", self.src_signal_expect_value, 0, _MOST_VALUE)
        return Overlap(signals, 1, rows, value, num_sms or _SMS_OF_EXPERTS)

    def _by_blocks(self, local: int, rows: int, num_sms: int) -> Overlap:
        block_m = checks.check_int("block_m", self.block_m, 1, _MOST_VALUE)
        per_expert = -(-rows // block_m)
        words = f"{local} experts x {per_expert} blocks of block_m={block_m} rows"
        signals = _signals("comp_signal", self.comp_signal, (torch.int32,), local * per_expert, words)
        value = checks.check_int(
            "threshold", self.threshold, 1, _MOST_VALUE, "It is what a signal counts up to, set by who computes."
        )
        checks.check_vector("packed_recv_count", self.packed_recv_count, torch.int32, local)
        return Overlap(signals, per_expert, block_m, value, num_sms or _SMS_OF_BLOCKS)


def _signals(name: str, value: Any, dtypes: tuple[torch.dtype, ...], least: int, words: str) -> Tensor:
    allowed = f"a contiguous 1-D tensor of {' or '.join(str(d) for d in dtypes)}, at least {words} elements"
    if not isinstance(value, Tensor):
        refuse(name, value, allowed)
    good = value.dtype in dtypes and value.layout == torch.strided and value.dim() == 1 and value.is_contiguous()
    if not good or value.numel() < least:
        refuse(name, value, allowed)
    return value
