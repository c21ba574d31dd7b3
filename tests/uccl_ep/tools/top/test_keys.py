"""Keys come one by one from a terminal, which is left as it was; without one, time passes."""

from __future__ import annotations

import os
import pty
import sys
import time
from typing import Any

import pytest

from uccl_ep.tools.top import keys
from uccl_ep.tools.top.keys import keyboard


class Input:
    def __init__(self, fd: int) -> None:
        self.fd = fd

    def fileno(self) -> int:
        return self.fd


def test_keys_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    try:
        monkeypatch.setattr(sys, "stdin", Input(theirs))
        monkeypatch.setattr(keys.os, "tcgetpgrp", lambda fd: os.getpgrp())
        before = keys.termios.tcgetattr(theirs)
        with keyboard() as wait:
            os.write(ours, b"wq")
            assert [wait(5.0), wait(5.0), wait(0.01)] == ["w", "q", ""], "without Enter"
        assert keys.termios.tcgetattr(theirs) == before
        monkeypatch.setattr(keys.os, "tcgetpgrp", lambda fd: 1)
        with keyboard() as wait:
            os.write(ours, b"q\n")
            assert wait(0.01) == "", "in the background nothing is read, and nothing changed"
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize("stdin", [None, Input(-1)])
def test_keys_without_a_terminal(monkeypatch: pytest.MonkeyPatch, stdin: Any) -> None:
    monkeypatch.setattr(sys, "stdin", stdin)
    begin = time.monotonic()
    with keyboard() as wait:
        assert wait(0.05) == ""
    assert time.monotonic() - begin >= 0.05
