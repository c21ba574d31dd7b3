"""The vendors' errors in words, and that ours pass as they are."""

from __future__ import annotations

import pytest

from uccl_ep.errors import InvalidArgument, UcclEpError
from uccl_ep.gpu.cupy_errors import asking, in_words


@pytest.mark.parametrize(
    ("vendor", "meaning"),
    [
        ("cudaErrorMemoryAllocation: out of memory", "not enough memory"),
        ("hipErrorOutOfMemory: out of memory", "not enough free memory"),
        ("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: too many resources requested for launch", "registers or shared memory"),
        ("CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image is available", "another architecture"),
        ("cudaErrorInsufficientDriver: CUDA driver version is insufficient", "driver is older"),
        ("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might", "start again"),
        ("cudaErrorStreamCaptureInvalidated: operation failed", "being recorded"),
        ("something new", ""),
    ],
)
def test_cupy_errors_in_words(vendor: str, meaning: str) -> None:
    text = str(in_words("allocating 3 B", RuntimeError(vendor)))
    assert text.startswith("allocating 3 B failed: ")
    assert meaning in text and " ".join(vendor.split()) in text and "\n" not in text


def test_cupy_errors_translate_runtime_errors_only() -> None:
    with pytest.raises(UcclEpError, match=r"this failed: \[x\]") as caught, asking("this"):
        raise RuntimeError("x")
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(InvalidArgument, match="^ours$"), asking("this"):
        raise InvalidArgument("ours")
    with pytest.raises(KeyError), asking("this"):
        raise KeyError
    with asking("this"):
        pass
