"""How the text of an environment variable becomes a value: each raises ValueError where the text is none."""

from __future__ import annotations

import ipaddress
import math
import os
import re

from uccl_ep.errors import InvalidArgument
from uccl_ep.sizes import parse_bytes


def whole(text: str, least: int, most: int) -> int:
    """A whole number from `least` to `most`."""
    number = int(text, 10)
    if not least <= number <= most:
        raise ValueError(text)
    return number


def power_of_two(text: str) -> int:
    """2 to 2^20."""
    number = whole(text, 2, 1 << 20)
    if number & (number - 1):
        raise ValueError(text)
    return number


def num_bytes(text: str) -> int:
    """A number of bytes, also with a unit."""
    try:
        number = parse_bytes(text)
    except InvalidArgument as error:
        raise ValueError(text) from error
    return whole(str(number), 16, 1 << 40)


def seconds(text: str) -> float:
    """A finite number above 0."""
    number = float(text)
    if not (number > 0.0 and math.isfinite(number)):
        raise ValueError(text)
    return number


def address(text: str) -> str:
    """An address of one interface: a listener never binds all of them."""
    parsed = ipaddress.ip_address(text)
    if parsed.is_unspecified:
        raise ValueError(text)
    return str(parsed)


def cpu_list(text: str) -> tuple[int, ...]:
    """CPU numbers and ranges, each once; their order is that of proxy threads."""
    cpus: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        low = whole(first, 0, 65535)
        high = whole(last, low, 65535) if dash else low
        cpus.update(dict.fromkeys(range(low, high + 1)))
    return tuple(cpus)


def folder(text: str) -> str:
    """The whole path of a folder that is there or can be made."""
    path = os.path.abspath(os.path.expanduser(text))
    if "\0" in path:
        raise ValueError(text)
    if os.path.exists(path) and not os.path.isdir(path):
        raise ValueError(text)
    return path


def device(text: str) -> str:
    """auto, cpu, or a GPU."""
    if not re.fullmatch(r"auto|cpu|(cuda|hip)(:\d{1,3})?", text.lower()):
        raise ValueError(text)
    return text.lower()


def nics(text: str) -> str:
    """NICs to use or, each with ^, to leave out; see uccl_ep.fabric.nics."""
    names = [name.strip() for name in text.split(",")]
    excluded = {name.startswith("^") for name in names}
    if len(excluded) != 1 or not all(re.fullmatch(r"\^?[\w.*?-]+(:[1-9]\d{0,2})?", name) for name in names):
        raise ValueError(text)
    return ",".join(names)


def word(text: str) -> str:
    """Letters, digits, and . _ - ;"""
    if not re.fullmatch(r"[\w;.-]+", text):
        raise ValueError(text)
    return text


def mtu(text: str) -> int:
    """Payload of an RDMA packet."""
    if text not in ("0", "256", "512", "1024", "2048", "4096"):
        raise ValueError(text)
    return int(text)


def boolean(text: str) -> bool:
    """A yes or a no."""
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in words:
        raise ValueError(text)
    return words[text.lower()]
