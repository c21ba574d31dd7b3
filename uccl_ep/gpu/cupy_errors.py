"""What CuPy and torch raise for a GPU, as an error of ours that says what was asked and what to do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from uccl_ep.errors import UcclEpError

# A part of the vendor's error name or text, and what it means for whoever reads it.
_WORDS = (
    ("OutOfMemory", "the GPU has not enough free memory"),
    ("MemoryAllocation", "there is not enough memory"),
    ("OUT_OF_MEMORY", "there is not enough memory"),
    ("LAUNCH_OUT_OF_RESOURCES", "a block of this shape needs more registers or shared memory than the GPU has"),
    ("NO_BINARY_FOR_GPU", "the kernels were compiled for another architecture than this GPU's"),
    ("NoKernelImage", "the kernels were compiled for another architecture than this GPU's"),
    ("UNSUPPORTED_PTX_VERSION", "the driver is older than the compiler: update the driver, or install an older NVRTC"),
    ("InsufficientDriver", "the GPU's driver is older than CuPy's CUDA: update it, or install CuPy for an older CUDA"),
    ("StreamCapture", "this is not possible while a graph is being recorded"),
    ("STREAM_CAPTURE", "this is not possible while a graph is being recorded"),
    ("illegal memory access", "a kernel used an address that is not its own; the GPU's context is lost: start again"),
    ("ILLEGAL_ADDRESS", "a kernel used an address that is not its own; the GPU's context is lost: start again"),
    ("IllegalAddress", "a kernel used an address that is not its own; the GPU's context is lost: start again"),
    ("LAUNCH_FAILED", "a kernel failed; the GPU's context is lost: start again"),
    ("unspecified launch failure", "a kernel failed; the GPU's context is lost: start again"),
    ("LAUNCH_TIMEOUT", "the display's watchdog ended a kernel: use a GPU without a display"),
    (
        "PeerAccessUnsupported",
        "these two GPUs cannot use each other's memory (no NVLink, or the PCIe switch forbids it)",
    ),
    ("ECC", "the GPU's memory has failed: replace it, or use another"),
)


def in_words(asked: str, error: BaseException) -> UcclEpError:
    """An error to raise in place of the vendor's."""
    text = " ".join(str(error).split())
    meaning = next((words for part, words in _WORDS if part in text), "")
    return UcclEpError(f"{asked} failed: {meaning + ' ' if meaning else ''}[{text}]")


@contextlib.contextmanager
def asking(asked: str) -> Iterator[None]:
    """Translates what goes wrong inside.

    Raises:
        UcclEpError: `asked` failed, and why.
    """
    try:
        yield
    except UcclEpError:
        raise
    except RuntimeError as error:  # CUDARuntimeError, CUDADriverError and torch's errors are all of this kind
        raise in_words(asked, error) from error
