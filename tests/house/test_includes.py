"""Includes point one way: wire <- ring, memory, topology <- transport <- engine <- bindings (design: "The house")."""

from __future__ import annotations

import re

from tests.house.source import NATIVE, ROOT, files, judge, read

# component -> what it may include beside itself
ALLOWED = {
    "proxy/wire": set(),
    "proxy/ring": {"proxy/wire"},
    "proxy/memory": {"proxy/wire"},
    "proxy/topology": {"proxy/wire"},
    "proxy/diag": set(),
    "proxy/transport": {"proxy/wire", "proxy/ring", "proxy/memory", "proxy/topology", "proxy/diag"},
    "proxy/engine": {
        "proxy/wire", "proxy/ring", "proxy/memory", "proxy/topology", "proxy/diag", "proxy/transport",
    },
    "proxy/bindings": {
        "proxy/wire", "proxy/ring", "proxy/memory", "proxy/topology", "proxy/diag", "proxy/transport", "proxy/engine",
        "proxy/simulation", "kernels", "kernels/launch", "kernels/cpu",
    },
    "proxy/simulation": {
        "proxy/wire", "proxy/ring", "proxy/memory", "proxy/transport", "proxy/engine", "kernels",
        "kernels/launch",
    },
    "kernels/launch": {"proxy/wire", "proxy/ring", "kernels"},
    "kernels/cpu": {"proxy/wire", "kernels", "kernels/launch"},
    "kernels": {"proxy/wire", "proxy/ring/layout.h"},
}  # fmt: skip
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
_SYSTEM = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<([^>]+)>", re.MULTILINE)


def component(path: str) -> str | None:
    return next((name for name in ALLOWED if path.startswith(name + "/")), None)


def resolve(include: str, exists: object) -> str | None:
    """An include names a file relative to the root or to proxy/; nothing else (no "../", no neighbour's bare name)."""
    candidates = [include, f"proxy/{include}"]
    return next((c for c in candidates if ".." not in c and exists(c)), None)  # type: ignore[operator]


def problems(path: str, text: str, exists: object) -> dict[str, str]:
    found = {}
    own = component(path)
    for include in _INCLUDE.findall(text):
        target = resolve(include, exists)
        if target is None:
            found[f"{path} -> {include}"] = "not a path from the root or from proxy/"
        elif own is None:
            found[path] = "in no component that the design names"
        else:
            other = component(target)
            if other != own and other not in ALLOWED[own] and target not in ALLOWED[own]:
                found[f"{path} -> {include}"] = f"{own} may include {', '.join(sorted(ALLOWED[own])) or 'itself only'}"
    return found


def device_problems(path: str, text: str) -> dict[str, str]:
    """Device code compiles with NVRTC, which has no system header. Sources, kernels/host and kernels/launch are host
    code."""
    device = path.startswith(("kernels/", "proxy/wire/", "proxy/ring/layout.h")) and not path.endswith(".cpp")
    if not device or path.startswith(("kernels/host/", "kernels/launch/")):
        return {}
    return {f"{path} -> <{name}>": "device code includes no system header" for name in _SYSTEM.findall(text)}


def test_house_includes_point_one_way() -> None:
    found: dict[str, str] = {}
    for path in files(["kernels", "proxy"], NATIVE):
        text = read(path)
        found |= problems(path, text, lambda p: (ROOT / p).is_file())
        found |= device_problems(path, text)
    judge("include", found)


def test_house_includes_check_can_fail() -> None:
    tree = {"proxy/wire/types.h", "proxy/engine/engine.h", "proxy/ring/consumer.h", "proxy/ring/layout.h"}

    def verdict(path: str, line: str) -> bool:
        return not problems(path, line, tree.__contains__) and not device_problems(path, line)

    assert verdict("proxy/engine/worker.cpp", '#include "wire/types.h"\n#include <vector>')
    assert not verdict("proxy/wire/types.h", '#include "engine/engine.h"')
    assert not verdict("proxy/ring/consumer.h", '  #  include "engine/engine.h"')
    assert not verdict("proxy/ring/consumer.h", '#include "layout.h"')
    assert not verdict("proxy/ring/consumer.h", '#include "../wire/types.h"')
    assert verdict("kernels/device/ring_push.h", '#include "ring/layout.h"')
    assert not verdict("kernels/device/ring_push.h", '#include "ring/consumer.h"')
    assert not verdict("kernels/device/simt.h", "#include <cstdint>")
    assert verdict("kernels/host/runtime.cpp", "#include <cstdint>")
    assert not verdict("proxy/misc/x.h", '#include "wire/types.h"')
