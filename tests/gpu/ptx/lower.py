"""PTX instructions to the machine's: registers become few slots of 64 bits, names of operations say what is done.

A slot holds a value as PTX has it, extended with zeros: unsigned operations then need no width. What the machine reads
is a text, a line an instruction (machine/program.cpp): operation, predicate, targets, sources, offset, memory, place.
"""

from __future__ import annotations

import heapq
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.gpu.ptx.read import Instruction, Kernel

SPECIAL = {"%tid.x": "tid", "%ntid.x": "ntid", "%ctaid.x": "ctaid", "%nctaid.x": "nctaid", "%globaltimer": "timer"}
SPACES = ("param", "shared", "global", "generic")
ORDERS = ("weak", "relaxed", "acquire", "release", "acq_rel")
SCOPES = ("none", "cta", "gpu", "sys")
_REGISTER = re.compile(r"%\w+(?:@\d+)?$")
_ADDRESS = re.compile(r"\[([^+\]]+?)\s*(?:\+\s*(-?\d+))?\]$")
_FLOAT_COMPARE = {"eq", "ne", "lt", "le", "gt", "ge", "ltu", "leu", "gtu", "geu"}


@dataclass
class Lowered:
    """One instruction of the machine; registers still by name. A source is a name or a value."""

    op: str
    targets: list[str] = field(default_factory=list)  # "_" where a result is not wanted
    sources: list[str | int] = field(default_factory=list)
    offset: int = 0
    memory: str = ""
    predicate: str = ""
    place: int = 0
    label: str = ""  # that a branch goes to


def lower(kernel: Kernel) -> str:
    """A kernel as the machine reads it.

    Raises:
        ValueError: an instruction that it has no operation for; names it.
    """
    lowered = [_lower(i, kernel) for i in kernel.instructions]
    for one in lowered:
        if one.op == "bra":
            one.offset = kernel.labels[one.label]
    slots, count = _slots(lowered)
    lines = [f"kernel {kernel.name} {count} {kernel.param_bytes}", *(f"place {place}" for place in kernel.places)]
    for one in lowered:
        guard = one.predicate and ("!" if one.predicate[0] == "!" else "") + str(slots[one.predicate.lstrip("!")])
        targets = ",".join("_" if t == "_" else f"r{slots[t]}" for t in one.targets)
        sources = ",".join(f"={s:x}" if isinstance(s, int) else f"r{slots[s]}" for s in one.sources)
        row = (one.op, guard or "-", targets, sources, str(one.offset), one.memory, str(one.place))
        lines.append("\t".join(row))
    return "\n".join(lines) + "\n"


def _lower(i: Instruction, kernel: Kernel) -> Lowered:
    made = _BY_BASE.get(i.parts[0], _unknown)(i, kernel)
    made.predicate, made.place = i.predicate, i.place
    return made


def _unknown(i: Instruction, kernel: Kernel) -> Lowered:
    raise ValueError(f"{kernel.name}: no operation for {i.name} {', '.join(i.operands)}")


def _width(kind: str) -> int:
    return 1 if kind == "pred" else int(kind.lstrip("busfe")) if kind[1:].isdigit() else 0


def _value(text: str, width: int, kernel: Kernel) -> str | int:
    """A register's name, or a value of so many bits."""
    if _REGISTER.match(text):
        return text
    if text.startswith("0f"):
        return int(text[2:], 16)
    if text == kernel.param or "shared_memory_" in text:
        return 0  # the one array of shared memory lies at the beginning; arguments are addressed by offset
    try:
        return int(text, 0) & ((1 << width) - 1)
    except ValueError:
        raise ValueError(f"{kernel.name}: no operand of {width} bits: {text}") from None


def _plain(op: str, width: int = 64) -> Callable[[Instruction, Kernel], Lowered]:
    def make(i: Instruction, kernel: Kernel) -> Lowered:
        return Lowered(op, [i.operands[0]], [_value(o, width, kernel) for o in i.operands[1:]])

    return make


def _arithmetic(i: Instruction, kernel: Kernel) -> Lowered:
    base, kind = i.parts[0], i.parts[-1]
    width = _width(kind)
    if kind == "f32":
        return _plain({"fma": "ffma"}.get(base, f"f{base}"), 32)(i, kernel)
    if base in ("add", "sub"):
        op = f"{base}{width}"
    elif base in ("mul", "mad"):
        if "wide" in i.parts and kind != "u32" or base == "mad" and "lo" not in i.parts:
            return _unknown(i, kernel)
        op = "mulwide" if "wide" in i.parts else f"{base}lo{width}"
    elif base in ("min", "max"):
        op = f"{base}u" if kind[0] in "ub" else f"{base}s{width}"
    elif base in ("div", "rem") and kind[0] == "u":
        op = f"{base}u"
    else:
        return _unknown(i, kernel)
    return _plain(op, width)(i, kernel)


def _bits(i: Instruction, kernel: Kernel) -> Lowered:
    base, width = i.parts[0], _width(i.parts[-1])
    if base == "not":
        return Lowered("xorb", [i.operands[0]], [_value(i.operands[1], width, kernel), (1 << width) - 1])
    return _plain({"and": "andb", "or": "orb", "xor": "xorb"}[base], width)(i, kernel)


def _shift(i: Instruction, kernel: Kernel) -> Lowered:
    base, kind = i.parts[0], i.parts[-1]
    width = _width(kind)
    if base == "shf":
        if i.parts[1:3] != ["l", "wrap"]:
            return _unknown(i, kernel)
        return _plain("shflw", 32)(i, kernel)
    op = f"shl{width}" if base == "shl" else "shr" if kind[0] in "ub" else f"shrs{width}"
    value = _value(i.operands[1], width, kernel)
    return Lowered(op, [i.operands[0]], [value, _value(i.operands[2], 32, kernel)])


def _negate(i: Instruction, kernel: Kernel) -> Lowered:
    if i.parts[-1] == "f32":
        return _plain("fneg", 32)(i, kernel)
    width = _width(i.parts[-1])
    return Lowered(f"sub{width}", [i.operands[0]], [0, _value(i.operands[1], width, kernel)])


def _compare(i: Instruction, kernel: Kernel) -> Lowered:
    how, kind = i.parts[1], i.parts[-1]
    width = _width(kind)
    sources = [_value(o, width, kernel) for o in i.operands[1:]]
    if kind == "f32":
        if how not in _FLOAT_COMPARE:
            return _unknown(i, kernel)
        return Lowered(f"f{how}", [i.operands[0]], sources)
    if how in ("eq", "ne"):
        return Lowered(how, [i.operands[0]], sources)
    if kind[0] == "s":
        return Lowered(f"{how}s", [i.operands[0]], [*sources, width])
    return Lowered(f"{how.rstrip('os')}u" if how in ("lo", "ls", "hi", "hs") else f"{how}u", [i.operands[0]], sources)


def _select(i: Instruction, kernel: Kernel) -> Lowered:
    width = _width(i.parts[-1])
    target, yes, no, which = i.operands
    return Lowered("sel", [target], [_value(yes, width, kernel), _value(no, width, kernel), which])


def _move(i: Instruction, kernel: Kernel) -> Lowered:
    width = _width(i.parts[-1])
    target, source = i.operands
    if source in SPECIAL:
        return Lowered(SPECIAL[source], [target])
    if source.startswith("{"):
        halves = [_value(h, width // 2, kernel) for h in _vector(source)]
        if width == 128:
            return Lowered("pack128", [target], halves)  # replaced where it is stored
        return Lowered(f"pack{width // 2}", [target], halves)
    if target.startswith("{"):
        return Lowered(f"unpack{width // 2}", _vector(target), [_value(source, width, kernel)])
    return Lowered("mov", [target], [_value(source, width, kernel)])


def _convert(i: Instruction, kernel: Kernel) -> Lowered:
    target, parts = i.operands[0], i.parts
    to, of = parts[-2], parts[-1]
    source = _value(i.operands[1], _width(of) or 32, kernel)
    if "e4m3x2" in parts:
        return Lowered("e4m3x2", [target], [source, _value(i.operands[2], 32, kernel)])
    if to == "f32" and of == "f32" and "rmi" in parts:
        return Lowered("ffloor", [target], [source])
    if to == "f32" and of[0] == "u":
        return Lowered("fromu", [target], [source])
    if to == "f32" and of == "s32":
        return Lowered("froms", [target], [source])
    if to == "u32" and of == "f32" and "rzi" in parts:
        return Lowered("tou", [target], [source])
    if "f" in to + of:
        return _unknown(i, kernel)
    wanted, given = _width(to), _width(of)
    if of[0] == "s" and given < wanted:
        return Lowered(f"sext{given}", [target], [source, (1 << wanted) - 1])
    return Lowered("andb", [target], [source, (1 << min(wanted, given)) - 1])


def _address_of(i: Instruction, kernel: Kernel) -> Lowered:
    return Lowered("global" if "to" in i.parts else "shared", [i.operands[0]], [_value(i.operands[1], 64, kernel)])


def _memory(i: Instruction, kernel: Kernel) -> Lowered:
    base, parts = i.parts[0], i.parts
    kind = parts[-1]
    width = _width(kind)
    count = next((int(p[1]) for p in parts if p in ("v2", "v4")), 1)
    address, data = (1, 0) if base != "st" else (0, 1)
    found = _ADDRESS.match(i.operands[address])
    if found is None or width % 8 or "volatile" in parts:
        return _unknown(i, kernel)
    at, offset = _value(found[1], 64, kernel), int(found[2] or 0)
    if found[1] == kernel.param:
        at = 0
    space = next((s for s in SPACES[:3] if s in parts), "generic")
    order = next((o for o in ORDERS[1:] if o in parts), "weak")
    scope = next((s for s in SCOPES[1:] if s in parts), "none")
    if (order == "weak") != (scope == "none"):
        return _unknown(i, kernel)
    vector = _vector(i.operands[data]) if i.operands[data].startswith("{") else [i.operands[data]]
    extended, op = 0, {"ld": "ld", "st": "st", "atom": "add"}[base]
    targets, sources = [], [at]
    if base == "ld":
        targets = vector
        if kind[0] == "s":
            extended = 8 if vector[0].startswith("%rd") else 2 if vector[0].startswith("%rs") else 4
    elif base == "st" and width == 128:
        sources += [f"{vector[0]}.lo", f"{vector[0]}.hi"]
        width, count = 64, 2
    elif base == "st":
        sources += [_value(v, width, kernel) for v in vector]
    else:
        targets = vector
        sources += [_value(o, width, kernel) for o in i.operands[2:]]
        op = parts[1]
        if op not in ("add", "cas") or op == "cas" and width != 32:
            return _unknown(i, kernel)
    memory = (SPACES.index(space), width // 8, count, extended, ORDERS.index(order), SCOPES.index(scope))
    return Lowered(op, targets, sources, offset, " ".join(map(str, memory)))


def _barrier(i: Instruction, kernel: Kernel) -> Lowered:
    if i.parts[1] == "warp":
        return Lowered("barwarp", [], [_value(i.operands[0], 32, kernel)])
    if i.parts[1] == "sync" and i.operands == ("0",):
        return Lowered("barsync")
    if i.parts[1:3] == ["red", "and"] and i.operands[1] == "0":
        return Lowered("barand", [i.operands[0]], [i.operands[2]])
    return _unknown(i, kernel)


def _shuffle(i: Instruction, kernel: Kernel) -> Lowered:
    target, _, flag = i.operands[0].partition("|")
    value, lane, clamp, mask = (_value(o, 32, kernel) for o in i.operands[1:])
    if i.parts[2] not in ("idx", "bfly"):
        return _unknown(i, kernel)
    return Lowered(f"shfl{i.parts[2]}", [target, flag or "_"], [value, lane, clamp, mask])


def _vote(i: Instruction, kernel: Kernel) -> Lowered:
    if i.parts[1:3] != ["sync", "ballot"]:
        return _unknown(i, kernel)
    return Lowered("ballot", [i.operands[0]], [i.operands[1], _value(i.operands[2], 32, kernel)])


def _sum(i: Instruction, kernel: Kernel) -> Lowered:
    if i.parts[1:3] != ["sync", "add"]:
        return _unknown(i, kernel)
    return _plain("redux", 32)(i, kernel)


def _branch(i: Instruction, kernel: Kernel) -> Lowered:
    return Lowered("bra", label=i.operands[0])


_BY_BASE: dict[str, Callable[[Instruction, Kernel], Lowered]] = {
    **dict.fromkeys(("add", "sub", "mul", "mad", "min", "max", "div", "rem", "fma"), _arithmetic),
    **dict.fromkeys(("and", "or", "xor", "not"), _bits),
    **dict.fromkeys(("shl", "shr", "shf"), _shift),
    **dict.fromkeys(("ld", "st", "atom"), _memory),
    "neg": _negate,
    "setp": _compare,
    "selp": _select,
    "mov": _move,
    "cvt": _convert,
    "cvta": _address_of,
    "abs": _plain("fabs", 32),
    "rcp": _plain("frcp", 32),
    "ex2": _plain("fex2", 32),
    "popc": _plain("popc"),
    "brev": _plain("brev"),
    "clz": lambda i, kernel: _plain("clz")(i, kernel) if i.parts[-1] == "b32" else _unknown(i, kernel),
    "bfind": lambda i, kernel: _plain("bfind")(i, kernel) if i.parts[1:] == ["shiftamt", "u32"] else _unknown(i, kernel),
    "bfi": lambda i, kernel: _plain(f"bfi{_width(i.parts[-1])}")(i, kernel),
    "bar": _barrier,
    "shfl": _shuffle,
    "vote": _vote,
    "redux": _sum,
    "nanosleep": lambda i, kernel: Lowered("sleep"),
    "bra": _branch,
    "ret": lambda i, kernel: Lowered("ret"),
}


def _vector(text: str) -> list[str]:
    return [part.strip() for part in text.strip("{} ").split(",")]


# ---- slots -------------------------------------------------------------------------------------------------------------


def _uses(one: Lowered) -> list[str]:
    names = [s for s in one.sources if isinstance(s, str)]
    if one.predicate:  # an instruction that may do nothing leaves its targets as they were
        names += [one.predicate.lstrip("!"), *_defines(one)]
    return names


def _defines(one: Lowered) -> list[str]:
    return [t for t in one.targets if t != "_"]


def _join_wide(lowered: list[Lowered]) -> None:
    """A 128-bit register is two of 64: what is packed into it is stored from where it was."""
    halves: dict[str, list[str | int]] = {}
    for one in lowered:
        if one.op == "pack128":
            halves[one.targets[0]] = list(one.sources)
            one.op, one.targets, one.sources = "mov", ["_"], [0]
        elif one.op == "st":
            one.sources = [
                halves[s[:-3]][s.endswith(".hi")] if isinstance(s, str) and s.endswith((".lo", ".hi")) else s
                for s in one.sources
            ]


def _slots(lowered: list[Lowered]) -> tuple[dict[str, int], int]:
    """A slot for each register, shared by registers that do not live at the same time, and how many slots that takes."""
    _join_wide(lowered)
    ends = _live_ranges(lowered)
    slots: dict[str, int] = {}
    free: list[int] = []
    busy: list[tuple[int, int]] = []  # (the end of its life, slot)
    count = 0
    for name, (begin, end) in sorted(ends.items(), key=lambda item: item[1]):
        while busy and busy[0][0] < begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            slots[name] = heapq.heappop(free)
        else:
            slots[name] = count
            count += 1
        heapq.heappush(busy, (end, slots[name]))
    return slots, count


def _live_ranges(lowered: list[Lowered]) -> dict[str, tuple[int, int]]:
    """First and last instruction of each register's life, loops included."""
    number = {name: n for n, name in enumerate(dict.fromkeys(x for one in lowered for x in _uses(one) + _defines(one)))}
    starts = sorted({0, *(one.offset for one in lowered if one.op == "bra"), *_after_jumps(lowered)})
    blocks = list(zip(starts, [*starts[1:], len(lowered)], strict=True))
    index = {begin: n for n, (begin, _) in enumerate(blocks)}
    used, defined, after = [], [], []
    for begin, end in blocks:
        reads = writes = 0
        for one in lowered[begin:end]:
            for name in _uses(one):
                reads |= (1 << number[name]) & ~writes
            for name in _defines(one):
                writes |= 1 << number[name]
        used.append(reads)
        defined.append(writes)
        last = lowered[end - 1]
        next_blocks = [index[last.offset]] if last.op == "bra" else []
        if end < len(lowered) and (last.op not in ("bra", "ret") or last.predicate):
            next_blocks.append(index[end])
        after.append(next_blocks)
    live_in = list(used)
    live_out = [0] * len(blocks)
    changed = True
    while changed:
        changed = False
        for n in reversed(range(len(blocks))):
            out = 0
            for follower in after[n]:
                out |= live_in[follower]
            into = used[n] | out & ~defined[n]
            if out != live_out[n] or into != live_in[n]:
                live_out[n], live_in[n], changed = out, into, True
    names = list(number)
    first: dict[str, int] = {}
    last_at: dict[str, int] = {}

    def at(name: str, position: int) -> None:
        first[name] = min(first.get(name, position), position)
        last_at[name] = max(last_at.get(name, position), position)

    for n, (begin, end) in enumerate(blocks):
        for mask, position in ((live_in[n], begin), (live_out[n], end - 1)):
            while mask:
                low = mask & -mask
                at(names[low.bit_length() - 1], position)
                mask ^= low
        for position in range(begin, end):
            for name in _uses(lowered[position]) + _defines(lowered[position]):
                at(name, position)
    return {name: (first[name], last_at[name]) for name in names}


def _after_jumps(lowered: list[Lowered]) -> list[int]:
    return [n + 1 for n, one in enumerate(lowered) if one.op in ("bra", "ret") and n + 1 < len(lowered)]


def float_bits(value: float) -> int:
    """The value as a slot holds it."""
    return int.from_bytes(struct.pack("<f", value), "little")
