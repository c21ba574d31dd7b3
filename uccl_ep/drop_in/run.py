"""`uccl-ep run -- script.py args`: a program, and every Python process it starts, with uccl_ep as `deep_ep`.

The program replaces this process, so signals, standard streams and the exit status are its own.
"""

from __future__ import annotations

import os
import shutil
import site
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from uccl_ep.drop_in.startup import VARIABLE
from uccl_ep.errors import Described, refuse

SITE = Path(__file__).parent / "site"
_PYTHON_OPTIONS = ("-m", "-c")


def command_line(arguments: Sequence[str]) -> list[str]:
    """What to execute: `script.py ...`, `-m module ...` and `-c code ...` with this Python, anything else as it is.

    Raises:
        InvalidArgument: nothing was given, or a program that is neither a file nor on PATH.
    """
    if not arguments:
        refuse(
            "run",
            Described("nothing"),
            "given -- script.py [arguments], -- -m module [arguments], or -- program [arguments]",
        )
    first = arguments[0]
    if first in _PYTHON_OPTIONS or first.endswith(".py"):
        if first.endswith(".py") and not os.path.isfile(first):
            refuse("run", first, "given a script that exists", f"Looked in {os.getcwd()}.")
        return [sys.executable, *arguments]
    program = shutil.which(first)
    if program is None:
        refuse("run", first, "given a .py file, -m module, -c code, or a program on PATH such as torchrun")
    return [program, *arguments[1:]]


def with_drop_in(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` in which every Python that starts has uccl_ep as `deep_ep`.

    PYTHONPATH gets the folder of our sitecustomize first, which hands over to the one that was there before; and, where
    this uccl_ep is not installed but lies in a folder, that folder last.
    """
    package = str(Path(__file__).parents[2])
    before = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    inner = [entry for entry in before if entry not in (str(SITE), package)]
    # Never the folder of all packages: on PYTHONPATH it would come before the standard library.
    outer = [] if package in _package_folders() else [package]
    return {**environment, VARIABLE: "1", "PYTHONPATH": os.pathsep.join([str(SITE), *inner, *outer])}


def _package_folders() -> set[str]:
    return {site.getusersitepackages(), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}


def execute(arguments: Sequence[str]) -> NoReturn:
    """Replaces this process by the program. Returns only by an exception.

    Raises:
        InvalidArgument: see `command_line`.
    """
    command = command_line(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, with_drop_in(os.environ))
