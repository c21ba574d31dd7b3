"""Which builds of DeepEP are compared, what was read of them (builds.json), and what uccl_ep answers to each name."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).parent / "builds.json"


class Build(NamedTuple):
    """A package that is imported as `deep_ep` (or V2.5's newer name)."""

    name: str  # what the table says
    source: str  # a requirement for pip, or OWNER/NAME@branch
    path: str = "deep_ep"  # of the package in it
    folders: tuple[str, ...] = ("deep_ep",)  # that it takes

    @property
    def package(self) -> str:
        """What it is imported as."""
        return self.path.rpartition("/")[2]


_DEEPEP = "deepseek-ai/DeepEP"
BUILDS = (
    Build("sgl-deep-ep", "sgl-deep-ep==0.1.2.post1"),
    Build("tokenspeed-deepep", "tokenspeed-deepep==2.1.0.post20260810"),
    Build("sgl-deep-ep-v25", "sgl-deep-ep-v25==0.1.0rc0", "deep_ep_v25"),
    Build("main", f"{_DEEPEP}@main"),
    Build("v1.2.1", f"{_DEEPEP}@v1.2.1"),
    Build("hybrid-ep", f"{_DEEPEP}@hybrid-ep"),
    Build("antgroup-opt", f"{_DEEPEP}@antgroup-opt"),
    Build("eager-rdma", f"{_DEEPEP}@eager-rdma"),
    Build("mori-ep", f"{_DEEPEP}@mori-ep"),
    Build("tencent-zcopy", f"{_DEEPEP}@tencent-zcopy"),
    Build("nvDev", f"{_DEEPEP}@nvDev"),
    Build("uccl", "uccl-project/uccl@main", "ep/deep_ep_wrapper/deep_ep", ("ep/deep_ep_wrapper", "ep/bench")),
)

ELSEWHERE = {
    "comm.barrier.barrier": "comm.barrier",  # a module and a function of one name: here it is the function
}
"""Name -> where its value stands here."""

NOT_TAKEN = {"buffer_rocm.Buffer": ("convert_stand_alone", "chooses among that branch's own kernels")}
"""Name -> an argument that is refused as unknown, and what it is for there."""

RENAMED = {"group": "group_or_buffer"}
"""Argument -> the name that stands in its place here, and takes the same."""

NOT_PASSED = {
    "EPHandle": "dispatch makes it, nobody else",
    "BufferBase": "it is the base of buffers, and not made by itself",
}
"""Class -> why its arguments are not compared."""


class Answer(NamedTuple):
    """What uccl_ep has under a name."""

    kind: str  # "present", "refused" or "absent"
    words: str = ""  # why, or which arguments are not taken
    by_name_from: str = ""  # from this argument on, arguments stand elsewhere here: they must be passed by name


def write(read: dict[str, tuple[str, dict[str, str]]]) -> None:
    """Writes builds.json from build -> (version, names): name -> signature -> builds that have it."""
    names: dict[str, dict[str, list[str]]] = {}
    for build, (_, found) in read.items():
        for name, signature in found.items():
            names.setdefault(name, {}).setdefault(signature, []).append(build)
    content = {
        "versions": {build: version for build, (version, _) in read.items()},
        "names": dict(sorted(names.items())),
    }
    FILE.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


@functools.cache
def recorded() -> dict[str, Any]:
    """What builds.json says."""
    content: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return content


def answer(package: str, name: str, signature: str) -> Answer:
    """Of a name in a build that is imported as `package`; the drop-in must be active.

    Raises:
        ImportError: the package itself is not answered for.
    """
    value: Any = importlib.import_module(package)
    parts = ELSEWHERE.get(name, name).split(".")
    if len(parts) == 2 and not hasattr(value, parts[0]) and parts[0][0].isupper():  # a method: where its class is
        modules = [other.rpartition(".")[0] for other in recorded()["names"] if other.endswith(f".{parts[0]}")]
        parts = [*modules[0].split("."), *parts]
    for depth, part in enumerate(parts):
        if not hasattr(value, part):
            try:
                importlib.import_module(".".join([package, *parts[: depth + 1]]))
            except ImportError:
                return Answer("absent")
        value = getattr(value, part)
        why = getattr(value, "refused", None)
        if isinstance(why, str):
            return Answer("refused", why)
    lacking = not_taken(value, signature) if parts[-1] not in NOT_PASSED else []
    return Answer("present", ", ".join(lacking), first_moved(value, signature) if parts[-1] not in NOT_PASSED else "")


def not_taken(value: Any, signature: str) -> list[str]:
    """Arguments of a recorded signature that cannot be given to `value` by name."""
    if not signature.startswith("(") or not callable(value):
        return []
    own = inspect.signature(value).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in own.values()):
        return []
    return [name for name in argument_names(signature) if name not in own and name != "kwargs"]


def first_moved(value: Any, signature: str) -> str:
    """The first argument of a recorded signature that has another place among those of `value`; "" where none has."""
    if not signature.startswith("(") or not callable(value):
        return ""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    own = [p.name for p in inspect.signature(value).parameters.values() if p.kind in kinds and p.name != "self"]
    for place, name in enumerate(argument_names(re.split(r"(?:, |\()\*", signature)[0] + ")")):
        known = (RENAMED.get(name, name), name)
        if place >= len(own) or own[place] not in known:
            return name
    return ""


def argument_names(signature: str) -> list[str]:
    """["x", "handle"] of "(x, handle=None, *, **kwargs)"; values may hold commas within brackets."""
    inner, depth, parts = signature[1:-1], 0, [""]
    for character in inner:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    names = (re.match(r"\s*(\w+)", part) for part in parts)
    return [match[1] for match in names if match]
