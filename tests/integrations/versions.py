"""What versions.ini says: one Integrator for each section."""

from __future__ import annotations

import configparser
import hashlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("versions.ini")
_FIELDS = {"package", "version", "python", "driver", "beside", "optional", "limit_s", "ranks"}
_RANKS = 4
_LIMIT_S = 900  # a guard against ranks that hang, also where others use the cores


@dataclass(frozen=True)
class Integrator:
    """A published wheel and the driver that runs its code on us."""

    name: str
    package: str
    version: str
    driver: str
    beside: tuple[str, ...]
    optional: bool
    limit_s: int
    python: str = ""  # the oldest that it installs on, such as "3.12"; "": any
    ranks: int = _RANKS  # processes that run the driver

    @property
    def other_python(self) -> str:
        """The Python that it needs, or "" where the one that runs the tests will do."""
        return "" if sys.version_info[:2] >= _numbers(self.python) else self.python

    @property
    def by_name(self) -> bool:
        """Only run when it is asked for by name."""
        return self.optional or bool(self.other_python)

    @property
    def requirements(self) -> list[str]:
        return [f"{self.package}=={self.version}", *self.beside]

    def key(self, *more: str) -> str:
        """Changes when the environment must be made anew."""
        return hashlib.sha256("\n".join([*self.requirements, *more]).encode()).hexdigest()[:12]


def _numbers(python: str) -> tuple[int, ...]:
    return tuple(int(part) for part in python.split(".")) if python else ()


def integrators(text: str | None = None) -> list[Integrator]:
    """In the file's order.

    Raises:
        ValueError: a section lacks a package or a version, or has a word or a Python that means nothing.
    """
    parser = configparser.ConfigParser()
    parser.read_string(FILE.read_text(encoding="utf-8") if text is None else text)
    found = []
    for name in parser.sections():
        section = parser[name]
        unknown = set(section) - _FIELDS
        if unknown or not section.get("package") or not section.get("version"):
            raise ValueError(f"versions.ini [{name}]: wants package and version, may have {sorted(_FIELDS)}")
        python = section.get("python", "")
        if not re.fullmatch(r"(\d+\.\d+)?", python):
            raise ValueError(f"versions.ini [{name}]: python is {python!r}; wants a version such as 3.12")
        beside = tuple(section.get("beside", "").split())
        driver, limit = section.get("driver", name), section.getint("limit_s", _LIMIT_S)
        optional, ranks = section.getboolean("optional", False), section.getint("ranks", _RANKS)
        package, release = section["package"], section["version"]
        found.append(Integrator(name, package, release, driver, beside, optional, limit, python, ranks))
    return found
