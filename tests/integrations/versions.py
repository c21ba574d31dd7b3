"""What versions.ini says: one Integrator for each section."""

from __future__ import annotations

import configparser
import hashlib
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("versions.ini")
_FIELDS = {"package", "version", "driver", "beside", "optional", "limit_s"}


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

    @property
    def requirements(self) -> list[str]:
        return [f"{self.package}=={self.version}", *self.beside]

    def key(self, *more: str) -> str:
        """Changes when the environment must be made anew."""
        return hashlib.sha256("\n".join([*self.requirements, *more]).encode()).hexdigest()[:12]


def integrators(text: str | None = None) -> list[Integrator]:
    """In the file's order.

    Raises:
        ValueError: a section lacks a package or a version, or has a word that means nothing.
    """
    parser = configparser.ConfigParser()
    parser.read_string(FILE.read_text(encoding="utf-8") if text is None else text)
    found = []
    for name in parser.sections():
        section = parser[name]
        unknown = set(section) - _FIELDS
        if unknown or not section.get("package") or not section.get("version"):
            raise ValueError(f"versions.ini [{name}]: wants package and version, may have {sorted(_FIELDS)}")
        beside = tuple(section.get("beside", "").split())
        driver, limit = section.get("driver", name), section.getint("limit_s", 300)
        optional = section.getboolean("optional", False)
        found.append(Integrator(name, section["package"], section["version"], driver, beside, optional, limit))
    return found
