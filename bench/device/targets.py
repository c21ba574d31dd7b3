"""A figure that must be reached, and whether it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Target:
    """`measured` against `wanted`, which it must reach (at_least) or stay under."""

    name: str
    measured: float
    wanted: float
    at_least: bool
    where: str  # the configuration that gave it

    @property
    def met(self) -> bool:
        """Whether the figure is good enough."""
        return self.measured >= self.wanted if self.at_least else self.measured < self.wanted

    def as_json(self) -> dict[str, Any]:
        """For the result file."""
        return {
            "name": self.name,
            "measured": self.measured,
            "wanted": self.wanted,
            "at_least": self.at_least,
            "met": self.met,
            "where": self.where,
        }
