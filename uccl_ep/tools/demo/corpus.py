# Text that every machine with Python has: the sources of its own standard library, chosen by name and cut at a fixed
# size, so that all ranks of a run read the same bytes. Imports no torch.
from __future__ import annotations

import hashlib
import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from uccl_ep.errors import UcclEpError

BUDGET_BYTES = 2_000_000
"""Bytes of text in total. 60 steps of the default model read about 123 kB of it."""
VALIDATION_EVERY = 10
"""Every tenth file is kept out of training."""
SKIPPED = frozenset({"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"})


class NoText(UcclEpError):
    """The standard library's sources are not readable as files."""


@dataclass(frozen=True)
class Corpus:
    """Bytes for training and validation (uint8, one dimension); the two come from different files."""

    train: npt.NDArray[np.uint8]
    validation: npt.NDArray[np.uint8]
    files: int

    def digest(self) -> str:
        """Equal digests mean equal text; ranks and tests compare it."""
        return hashlib.sha256(self.train.tobytes() + b"|" + self.validation.tobytes()).hexdigest()[:16]


def source_files(root: Path) -> list[Path]:
    """Python sources below `root` in a fixed order (by name with '/' separators, which no locale changes)."""
    found = []
    for folder, subfolders, names in os.walk(root):
        # Pruned before it is entered: installed packages may hold a hundred thousand files.
        subfolders[:] = [name for name in subfolders if name not in SKIPPED]
        found += [Path(folder, name) for name in names if name.endswith(".py")]
    return sorted((path for path in found if path.is_file()), key=lambda path: path.relative_to(root).as_posix())


def load_corpus(root: Path | None = None, budget_bytes: int = BUDGET_BYTES) -> Corpus:
    """Reads files in order until the budget is full. Raises NoText when there is too little to train on."""
    root = root or Path(sysconfig.get_paths()["stdlib"])
    parts: dict[bool, list[bytes]] = {False: [], True: []}
    left = budget_bytes
    files = 0
    for path in source_files(root):
        if left <= 0:
            break
        text = path.read_bytes()[:left]
        parts[files % VALIDATION_EVERY == VALIDATION_EVERY - 1].append(text)
        left -= len(text)
        files += 1
    train, validation = (np.frombuffer(b"".join(parts[key]), dtype=np.uint8) for key in (False, True))
    if min(len(train), len(validation)) < 4096:
        raise NoText(
            f"the standard library's sources hold too little text: {len(train)} bytes for training and "
            f"{len(validation)} for validation in {files} files; a Python that ships its sources as .py files has both"
        )
    return Corpus(train, validation, files)


@dataclass(frozen=True)
class Batch:
    """Input bytes and the bytes that follow them, both int64 [sequences, length]."""

    tokens: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]


def sample(text: npt.NDArray[np.uint8], sequences: int, length: int, key: tuple[int, ...]) -> Batch:
    """Sequences at positions that depend on `key` (seed, step, rank ...) alone, so that any process can draw any
    rank's batch."""
    starts = np.random.default_rng(key).integers(0, len(text) - length, size=sequences)
    windows = text[starts[:, None] + np.arange(length + 1)].astype(np.int64)
    return Batch(np.ascontiguousarray(windows[:, :-1]), np.ascontiguousarray(windows[:, 1:]))
