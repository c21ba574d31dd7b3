"""Mutants that the machine does not find, and the reason why each changes nothing that PTX promises."""

from __future__ import annotations

_STREAM = "kernels of one rank run one after the other: the stream orders them"
_FAILED = "it ends a wait that has failed, or keeps a rank that has failed from starting: no row is read after it"
_HOST = "it orders the host's read of a slot before this rank overwrites it, and the machine does not see the host read"
KNOWN: tuple[tuple[str, str, str], ...] = (
    (
        "relax|narrow",
        r"call\.epoch|call\.state|epochs_of|\bs\.(dispatch|combine)\.|\bp\.(consumed|ahead|told)",
        _STREAM,
    ),
    ("narrow", r"identities->calls|a\.(geometry|settled|last)\b", _STREAM),
    ("relax|narrow", r"st_release_gpu\(ticket, 0u\)", _STREAM),
    (
        "narrow",
        r"c\.mask",
        "the host masks between launches; who sees it a call later leaves the peer out a call later",
    ),
    ("relax|narrow", r"context\.abort|departed|fault->|launch_failed|fail_launch", _FAILED),
    ("remove", r"aborted\(wait\)|launch_failed|all_see_ok", _FAILED),
    ("relax", r"ring\.tail|ring\.done", _HOST),
    (
        "relax",
        r"word\(c\.data\[i\], word_offset\), consumed",
        "whoever needs it has acquired a later flag of that rank",
    ),
)
"""Mutants that are not found: (how, a pattern of instruction and source lines, why)."""
