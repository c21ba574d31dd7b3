"""`deep_ep.utils.testing`: calls are counted, and output is silenced and comes back."""

from __future__ import annotations

import os

import pytest

from uccl_ep.drop_in.helpers import timing


def test_timing_calls_what_it_says() -> None:
    calls: list[str] = []
    mean, least, most = timing.bench(lambda: calls.append("fn"), 2, 3, lambda: calls.append("post"))
    assert calls == ["fn"] * 2 + ["fn", "post"] * 3 and 0 <= least <= mean <= most
    assert timing.bench(lambda: None, 0, 1)[0] >= 0  # one call is all there is


def test_timing_silences_python_and_native_code(capfd: pytest.CaptureFixture[str]) -> None:
    print("before", flush=True)
    with pytest.raises(KeyError), timing.suppress_stdout_stderr():
        print("within")
        os.write(2, b"within")
        raise KeyError
    with timing.empty_suppress():
        os.write(1, b"after\n")
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("before\nafter\n", "")
