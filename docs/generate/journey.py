"""The pictures of "one token's journey": rank 0 on node A sends a token to experts of ranks 2 and 3 on node B.

    python -m docs.generate.journey FOLDER      # writes journey-1-light.svg, journey-1-dark.svg, ...

The site calls `files()` while it is built. The README's two (pages.KEPT_PICTURES) are kept, and a test compares them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from docs.generate.svg import THEMES, Arrow, Box, Picture

_WIDTH = 860.0


def pictures() -> list[Picture]:
    """The journey's pictures in their order."""
    return [_overview(), _command(), _network(), _arrivals(), _receive(), _combine()]


def files() -> dict[str, str]:
    """File name -> SVG text, each picture in each theme."""
    return {f"{p.name}-{theme.name}.svg": p.draw(theme) for p in pictures() for theme in THEMES}


def _overview() -> Picture:
    boxes = [
        Box(10, 20, 290, 230, "node", ("node A",), top=True),
        Box(560, 20, 290, 230, "node", ("node B",), top=True),
        Box(20, 60, 130, 90, "kernel", ("rank 0", "has the token", "kernels + proxy"), lit=True),
        Box(160, 60, 130, 90, "kernel", ("rank 1", "reads rows of", "rank 0 in place")),
        Box(570, 60, 130, 90, "kernel", ("rank 2", "landing rank of 0", "kernels + proxy"), lit=True),
        Box(710, 60, 130, 90, "kernel", ("rank 3", "reads the row", "where it landed"), lit=True),
        Box(20, 180, 270, 55, "memory", ("memory of node A", "reached by load and store")),
        Box(570, 180, 270, 55, "memory", ("memory of node B", "reached by load and store")),
    ]
    arrows = [
        Arrow(300, 95, 560, 95, "once per (token, node B)", lit=True),
        Arrow(560, 205, 300, 205, "on the way back: one sum", above=False),
        Arrow(85, 150, 85, 180),
        Arrow(225, 180, 225, 150),
        Arrow(635, 180, 635, 150),
        Arrow(775, 180, 775, 150),
    ]
    return Picture(
        "journey-1",
        "Who is where",
        "Two nodes of two ranks each. The token of rank 0 crosses once to rank 2, and ranks 2 and 3 read it there.",
        _WIDTH,
        270,
        boxes,
        arrows,
    )


def _command() -> Picture:
    boxes = [
        Box(20, 20, 820, 210, "node", ("rank 0",), top=True),
        Box(40, 60, 200, 70, "kernel", ("kernel dispatch_send", "casts and copies the row"), lit=True),
        Box(40, 160, 200, 50, "memory", ("registered memory", "slot = token index")),
        Box(
            360,
            60,
            220,
            70,
            "memory",
            ("command ring", "16 bytes: op, peer, key,", "offsets, length, lap parity"),
            lit=True,
        ),
        Box(660, 60, 160, 70, "proxy", ("proxy engine", "pops, checks, posts")),
        Box(360, 160, 220, 50, "kernel", ("rank 1, same node", "release flag, then a load")),
    ]
    arrows = [
        Arrow(140, 130, 140, 160, "row"),
        Arrow(240, 95, 360, 95, "one store", lit=True),
        Arrow(580, 95, 660, 95),
        Arrow(240, 185, 360, 185, "same node"),
    ]
    return Picture(
        "journey-2",
        "A row in memory, a command in the ring",
        "The kernel writes the row into registered memory and one 16-byte command into the ring; a proxy takes it out.",
        _WIDTH,
        250,
        boxes,
        arrows,
    )


def _network() -> Picture:
    boxes = [
        Box(20, 50, 160, 80, "proxy", ("proxy of rank 0", "one worker a lane,", "no lock"), lit=True),
        Box(690, 50, 150, 80, "proxy", ("proxy of rank 2", "same lane")),
        Box(290, 30, 280, 30, "wire", ("row 7 | arrive, rank 0, epoch 12",)),
        Box(310, 75, 280, 30, "wire", ("row 3 | arrive, rank 0, epoch 12",)),
        Box(270, 120, 280, 30, "wire", ("expect 3 | rank 0, epoch 12",), lit=True),
        Box(330, 165, 280, 30, "wire", ("row 5 | arrive, rank 0, epoch 12",)),
    ]
    arrows = [Arrow(180, 90, 265, 90, "post"), Arrow(615, 90, 690, 90, "any order", lit=True)]
    return Picture(
        "journey-3",
        "Writes with 32 bits each, in any order",
        "Three rows and one announcement travel as writes with a 32-bit immediate; they may arrive in any order.",
        _WIDTH,
        215,
        boxes,
        arrows,
    )


def _arrivals() -> Picture:
    boxes = [
        Box(20, 20, 820, 190, "node", ("rank 2",), top=True),
        Box(
            40,
            60,
            210,
            130,
            "proxy",
            ("arrivals", "(dispatch, rank 0, epoch 12)", "seen 1, 2, 3", "announced 3"),
            lit=True,
        ),
        Box(340, 60, 210, 50, "proxy", ("seen = announced?", "and epoch 11 is done?")),
        Box(340, 140, 210, 50, "proxy", ("another life: dropped", "and counted")),
        Box(
            650,
            70,
            170,
            110,
            "memory",
            ("one published word", "release store:", "epoch 12 of rank 0", "is complete"),
            lit=True,
        ),
    ]
    arrows = [
        Arrow(250, 85, 340, 85),
        Arrow(250, 165, 340, 165, "too far"),
        Arrow(550, 85, 650, 85, "yes", lit=True),
    ]
    return Picture(
        "journey-4",
        "Counted, then published",
        "The receiving proxy counts immediates per phase, source and epoch; when count meets announcement it publishes "
        "one word.",
        _WIDTH,
        230,
        boxes,
        arrows,
    )


def _receive() -> Picture:
    boxes = [
        Box(20, 20, 820, 200, "node", ("node B",), top=True),
        Box(330, 60, 200, 60, "memory", ("row of the token", "in memory of rank 2"), lit=True),
        Box(40, 60, 190, 60, "kernel", ("rank 2 dispatch_recv", "waits for the word")),
        Box(630, 60, 190, 60, "kernel", ("rank 3 dispatch_recv", "waits for the same word")),
        Box(40, 155, 190, 50, "memory", ("packed rows", "of expert 5")),
        Box(630, 155, 190, 50, "memory", ("packed rows", "of expert 6")),
    ]
    arrows = [
        Arrow(330, 90, 230, 90, "load", lit=True),
        Arrow(530, 90, 630, 90, "load", lit=True),
        Arrow(135, 120, 135, 155),
        Arrow(725, 120, 725, 155),
    ]
    return Picture(
        "journey-5",
        "Read where it landed",
        "Ranks 2 and 3 both read the row from the memory of rank 2 and pack it into the rows of their own experts.",
        _WIDTH,
        240,
        boxes,
        arrows,
    )


def _combine() -> Picture:
    boxes = [
        Box(510, 20, 330, 200, "node", ("node B",), top=True),
        Box(530, 60, 140, 50, "kernel", ("rank 2", "y of expert 5")),
        Box(680, 60, 140, 50, "kernel", ("rank 3", "y of expert 6")),
        Box(560, 150, 230, 50, "kernel", ("throughput: merge by token", "in fp32, one partial sum"), lit=True),
        Box(20, 20, 330, 200, "node", ("node A",), top=True),
        Box(
            60,
            90,
            250,
            90,
            "kernel",
            ("rank 0", "low latency: y5, y6 in ascending k", "throughput: nodes in order", "rounded once to bf16"),
            lit=True,
        ),
    ]
    arrows = [
        Arrow(620, 110, 640, 150),
        Arrow(740, 110, 720, 150),
        Arrow(560, 175, 310, 160, "one row a node", lit=True, above=False),
        Arrow(530, 85, 310, 105, "low latency: direct"),
    ]
    return Picture(
        "journey-6",
        "The way back",
        "In low latency every expert's row goes straight to the owner, whose sum in ascending k fixes the rounding; in "
        "throughput mode a node merges its rows first and sends one partial sum.",
        _WIDTH,
        240,
        boxes,
        arrows,
    )


def main(arguments: list[str]) -> int:
    """Writes every picture into the folder that is named."""
    if len(arguments) != 1:
        print("usage: python -m docs.generate.journey FOLDER", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files().items():
        (folder / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
