"""Progress: a bar on a terminal, few plain lines elsewhere, nothing when nothing may be shown."""

from __future__ import annotations

import io
import re

from rich.console import Console

from uccl_ep.tools.demo.progress import PLAIN_LINES, TrainingProgress


def shown(steps: int, terminal: bool, width: int = 120) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=width)
    with TrainingProgress("four ranks", steps, 2048, console) as progress:
        for step in range(steps):
            progress.update(step, 5.0 - step / 100, seconds=(step + 1) * 0.5)
    return stream.getvalue()


def test_plain_lines_where_there_is_no_terminal() -> None:
    text = shown(80, terminal=False)
    lines = text.splitlines()
    assert len(lines) == PLAIN_LINES
    assert lines[-1] == "four ranks: step 80/80  loss 4.2100  4,096 tokens/s"
    assert "\x1b" not in text


def test_the_last_step_is_always_shown() -> None:
    assert "step 19/19" in shown(19, terminal=False)
    assert len(shown(1, terminal=False).splitlines()) == 1


def test_a_bar_on_a_terminal() -> None:
    text = shown(10, terminal=True)
    assert "10/10" in text and "4.9100" in text and "━" in text


def test_a_bar_has_room_at_80_columns() -> None:
    frames = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown(60, terminal=True, width=80)).replace("\r", "\n").splitlines()
    last = [line for line in frames if "60/60" in line][-1]
    assert len(last) <= 80 and last.count("━") >= 15, last


def test_nothing_without_a_console() -> None:
    with TrainingProgress("x", 3, 1, None) as progress:
        progress.update(0, 1.0, 1.0)
    assert progress.bar is None
