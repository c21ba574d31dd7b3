"""Proof that the machine finds wrong order: each instruction of the kernels that orders memory is weakened in turn.

    python -m tests.gpu.ptx.mutants            every mutant, some hours on a core; a second call goes on
    python -m tests.gpu.ptx.mutants --kernel combine --minutes 5

A release, an acquire or both become relaxed ("relax"); a scope becomes the next narrower one ("narrow"); a barrier is
taken out ("remove"). The mutant plays scenarios that execute the instruction; it is found when the machine reports an
error, a result is wrong or a rank waits in vain. Some cannot be found, or change nothing that PTX promises: KNOWN has
them, with the reason. What is neither is printed, and fails.

Two runs of different kernels (--kernel low_latency, --kernel throughput) may share two cores and the notes. Not beside
other work: a play that gets no processor for seconds ends as if its mutant had been found.

What each play has shown is kept in build/ptx, by kernel: when a kernel has changed, its own mutants are played again.
After a change of the machine or of a scenario, --anew.
"""

from __future__ import annotations

import argparse
import functools
import gc
import hashlib
import json
import logging
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu.ptx.known_mutants import KNOWN, REFUSED, UNSEEN
from tests.gpu.ptx.lower import ORDERS, SCOPES
from tests.gpu.ptx.programs import product
from tests.gpu.ptx.scenarios import SCENARIOS, SEEDS, play
from tests.kernels.ptx import ROOT

BATCH = 256  # mutants that play together, once each by itself has not been found at first sight: none hides another
AGAIN = 2  # times that a mutant which all plays have missed plays by itself: host threads make plays of a seed differ


@dataclass(frozen=True)
class Mutant:
    """One change of one instruction."""

    kernel: str
    instruction: int
    how: str
    what: str  # the instruction
    place: str  # file:line, and behind each "<" where that was inlined

    @functools.cached_property
    def lines(self) -> list[str]:
        """The lines of source that say what is ordered: callers of the primitive, the nearest first."""
        places = self.place.split(" < ")
        return [source_line(place) for place in places[1:] or places]

    @functools.cached_property
    def text(self) -> str:
        """What known_mutants' patterns are searched in."""
        return "\n".join([f"{self.kernel}: {self.what}: {self.lines[0]}", *self.lines[1:]])

    @property
    def behind(self) -> str:
        """The line of source before the first of those."""
        places = self.place.split(" < ")
        file, _, number = places[1 if len(places) > 1 else 0].partition(":")
        return source_line(f"{file}:{int(number) - 1}")

    @property
    def source(self) -> str:
        """The same in one text."""
        return " < ".join(self.lines)

    @property
    def key(self) -> tuple[str, int, str]:
        """What Machine.mutate takes."""
        return self.kernel, self.instruction, self.how

    @property
    def line(self) -> str:
        """What is weakened, of all kernels."""
        return f"{self.how} {self.what} {self.place.partition(' < ')[0]}"

    @property
    def copies(self) -> tuple[str, str, str]:
        """What is weakened, and from where, wherever that was inlined."""
        return self.how, self.what, " < ".join(self.place.split(" < ")[:3])

    @property
    def group(self) -> tuple[str, str, str, str]:
        """Copies of one line in one kernel."""
        return self.kernel, self.how, self.what, self.place


@functools.cache
def _files() -> dict[str, list[str]]:
    paths = (p for part in ("kernels", "proxy") for p in (ROOT / part).rglob("*.h"))
    return {"/".join(p.parts[-2:]): p.read_text(encoding="utf-8").splitlines() for p in paths}


def source_line(place: str) -> str:
    """The text at "folder/file.h:12"; "" where there is none."""
    file, _, number = place.partition(":")
    lines = _files().get(file, [])
    return lines[int(number) - 1].strip() if 0 < int(number) <= len(lines) else ""


def mutants(arch: str) -> list[Mutant]:
    """All of the product's kernels."""
    found: list[Mutant] = []
    kernel, number, places = "", 0, []
    for line in product(arch).splitlines():
        if line.startswith("kernel "):
            kernel, number, places = line.split()[1], 0, []
        elif line.startswith("place "):
            places.append(line[6:])
        else:
            op, _, _, _, _, memory, place = line.split("\t")
            for how, what in _changes(op, memory):
                found.append(Mutant(kernel, number, how, what, places[int(place)]))
            number += 1
    return found


def _changes(op: str, memory: str) -> list[tuple[str, str]]:
    if op in ("barsync", "barand", "barwarp"):
        return [("remove", op)]
    if not memory:
        return []
    order, scope = (int(part) for part in memory.split(" ")[4:])
    what = f"{op}.{ORDERS[order]}.{SCOPES[scope]}"
    return [("relax", what)] * (order > 1) + [("narrow", what)] * (scope > 1)


# ---- what executes them ----------------------------------------------------------------------------------------------


def known(mutant: Mutant) -> str:
    """Why it is not found, or ""."""
    return next((why for how, pattern, why in KNOWN if is_of(mutant, how, pattern)), "")


def refused(mutant: Mutant) -> bool:
    """Whether the machine finds it wherever it is executed."""
    return mutant.what.endswith(".sys") and any(is_of(mutant, how, pattern) for how, pattern in REFUSED)


def is_of(mutant: Mutant, how: str, pattern: str) -> bool:
    """Whether an entry of known_mutants matches it."""
    if mutant.how not in how.split("|"):
        return False
    text = f"{mutant.text}\nbehind: {mutant.behind}" if "behind: " in pattern else mutant.text
    return re.search(pattern, text) is not None


def fingerprints(text: str) -> dict[str, str]:
    """Of each kernel of a lowered text, what its instructions are; source lines may move."""
    found: dict[str, str] = {}
    for part in re.split(r"^kernel ", text, flags=re.MULTILINE)[1:]:
        instructions = [line.rpartition("\t")[0] for line in part.splitlines() if "\t" in line]
        found[part.split(maxsplit=1)[0]] = hashlib.sha256("\n".join(instructions).encode()).hexdigest()[:16]
    return found


class Notes:
    """What plays have shown, in a file that a later run goes on with: one line a play. It believes nothing of a kernel
    that has changed since."""

    def __init__(self, arch: str, folder: Path, anew: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.arch = arch
        self._kernels = fingerprints(product(arch))
        self._file = folder / f"mutants-{arch}.jsonl"
        self.executed: dict[tuple[str, str], list[int]] = {}  # by scenario and kernel, most of the seeds
        self.seconds: dict[str, float] = {}
        self.found: dict[tuple[str, int, str], tuple[str, int]] = {}  # by mutant: scenario and seed
        self.clean: dict[tuple[str, int, str], set[tuple[str, int]]] = defaultdict(set)
        if anew:
            self._file.unlink(missing_ok=True)
        if self._file.exists():
            for line in self._file.read_text().splitlines():
                self._take(json.loads(line))

    def _take(self, note: dict[str, Any]) -> None:
        name, seed, of = note["scenario"], note["seed"], note["of"]
        same = {kernel for kernel in of if self._kernels.get(kernel) == of[kernel]}
        if "executed" in note and same == of.keys():
            for kernel, counts in note["executed"].items():
                before = self.executed.get((name, kernel), counts)
                self.executed[name, kernel] = list(map(max, before, counts))
            self.seconds[name] = note["seconds"]
        mutants = [(kernel, at, how) for kernel, at, how in note.get("mutants", ()) if kernel in same]
        if not note["wrong"]:
            for mutant in mutants:
                self.clean[mutant].add((name, seed))
        elif len(note["mutants"]) == 1 and mutants:
            self.found[mutants[0]] = name, seed

    def add(self, kernels: Iterable[str], **note: Any) -> None:
        """Keeps a play's outcome, which tells of those kernels."""
        note["of"] = {kernel: self._kernels[kernel] for kernel in sorted(set(kernels) & self._kernels.keys())}
        with self._file.open("ab", buffering=0) as file:  # one write: runs of different kernels share the file
            file.write(json.dumps(note).encode() + b"\n")
        self._take(note)

    def cover(self, scenarios: Iterable[str] = SCENARIOS) -> None:
        """Plays each scenario that is new as the kernels are.

        Raises:
            AssertionError: it fails without any mutant.
        """
        for name in scenarios:
            if name in self.seconds:
                continue
            for seed in SEEDS:
                played = play(name, seed, arch=self.arch)
                assert not played.wrong, f"{name}, seed {seed}: {played.wrong}"
                executed = {kernel: played.world.machine.executed(kernel) for kernel in played.world.launches}
                self.add(executed, scenario=name, seed=seed, wrong="", seconds=played.seconds, executed=executed)

    def scenarios_of(self, mutant: Mutant) -> list[str]:
        """Those that execute its instruction, the quickest first."""
        names = [n for n in SCENARIOS if (n, mutant.kernel) in self.executed]
        names = [n for n in names if self.executed[n, mutant.kernel][mutant.instruction]]
        return sorted(names, key=self.seconds.__getitem__)


class Hunt:
    """Tries mutants: each with the scenario that is likeliest to find it, then many at once with all others."""

    def __init__(self, notes: Notes, end: float) -> None:
        self.notes, self._end = notes, end
        self._finds: dict[str, Counter[str]] = defaultdict(Counter)

    def over(self) -> bool:
        """Whether its time is up."""
        return time.monotonic() > self._end

    def run(self, mutants: list[Mutant]) -> None:
        """Until each is found, or no scenario finds it, or time is up."""
        for mutant in mutants:
            if mutant.key in self.notes.found:
                self._learn(mutant)
        # What KNOWN has is not likely to be found, whatever plays.
        for mutant in mutants:
            if self.over():
                return
            if not (mutant.key in self.notes.found or mutant.key in self.notes.clean or known(mutant)):
                name = max(self.notes.scenarios_of(mutant), key=lambda n: self._promise(mutant, n))
                self._play([mutant], name, SEEDS[0])
        for seed in SEEDS:
            for name in sorted(SCENARIOS, key=self.notes.seconds.__getitem__):
                for batch in self._batches(mutants, name, seed):
                    if self.over():
                        return
                    self._bisect(batch, name, seed)
        for mutant in mutants * AGAIN:
            if not (known(mutant) or refused(mutant)):
                self._play_alone(mutant)

    def _play_alone(self, mutant: Mutant) -> None:
        """Once by each seed of each scenario, until it is found."""
        for seed in SEEDS:
            for name in self.notes.scenarios_of(mutant):
                if self.over() or mutant.key in self.notes.found:
                    return
                self._play([mutant], name, seed)

    def _promise(self, mutant: Mutant, name: str) -> float:
        near, kernel = self._finds[mutant.line][name], self._finds[mutant.kernel][name]
        return near * 1000 + kernel - self.notes.seconds[name] / 100

    def _learn(self, mutant: Mutant) -> None:
        name, _ = self.notes.found[mutant.key]
        for of in (mutant.line, mutant.kernel):
            self._finds[of][name] += 1

    def _batches(self, mutants: Sequence[Mutant], name: str, seed: int) -> list[list[Mutant]]:
        """Mutants of different instructions, all of which a scenario executes and has not shown to be clean."""
        batches: list[dict[tuple[str, int], Mutant]] = []
        for mutant in mutants:
            if mutant.key in self.notes.found or (name, seed) in self.notes.clean[mutant.key]:
                continue
            if name in self.notes.scenarios_of(mutant):
                at = mutant.key[:2]
                batch = next((b for b in batches if at not in b and len(b) < BATCH), None)
                if batch is None:
                    batches.append(batch := {})
                batch[at] = mutant
        return [list(batch.values()) for batch in batches]

    def _bisect(self, batch: list[Mutant], name: str, seed: int) -> None:
        if not self._play(batch, name, seed) or len(batch) == 1 or self.over():
            return
        half = len(batch) // 2
        self._bisect(batch[:half], name, seed)
        self._bisect(batch[half:], name, seed)

    def _play(self, batch: list[Mutant], name: str, seed: int) -> str:
        """Whether they are found, together."""
        played = play(name, seed, [m.key for m in batch], self.notes.arch)
        gc.collect()  # or the machines of earlier plays stay, tens of MiB each
        keys = [m.key for m in batch]
        self.notes.add([m.kernel for m in batch], scenario=name, seed=seed, wrong=played.wrong, mutants=keys)
        if len(batch) == 1 and played.wrong:
            self._learn(batch[0])
        return played.wrong


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="compute_90a")
    parser.add_argument("--kernel", default="", help="of kernels whose names have this")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no further mutant after this")
    parser.add_argument("--anew", action="store_true", help="forget what earlier runs have shown")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # every world says that its ranks share a GPU
    notes = Notes(options.arch, ROOT / "build/ptx", options.anew)
    notes.cover()
    made = [m for m in mutants(options.arch) if options.kernel in m.kernel]
    Hunt(notes, time.monotonic() + 60 * options.minutes).run([m for m in made if notes.scenarios_of(m)])
    missed = [(m, end) for m, end in zip(made, outcomes(notes, made), strict=True) if end in ("missed", "open")]
    for mutant, end in missed:
        print(end, mutant.instruction, *mutant.group, mutant.source, sep=" | ", flush=True)
    print(table(notes, made))
    return 1 if missed else 0


COLUMNS = ("made", "found", "equivalent", "unseen", "not executed", "missed", "open")


def contradictions(notes: Notes, made: Sequence[Mutant]) -> list[str]:
    """Entries of KNOWN that match a mutant which was found, a line each: what they say of it is wrong."""
    found = [m for m in made if m.key in notes.found]
    return [
        f"{how} {pattern!r} ({why}): found in {of[0].kernel} by {notes.found[of[0].key]}, and {len(of) - 1} more"
        for how, pattern, why in KNOWN
        if (of := [m for m in found if is_of(m, how, pattern)])
    ]


def outcomes(notes: Notes, made: Sequence[Mutant]) -> list[str]:
    """For each mutant one of COLUMNS[1:]. "unseen": PTX promises something else then, and the machine does not see it;
    "not executed": by no scenario, but known_mutants has it, or a copy of the line that was inlined elsewhere is found;
    "open": not all scenarios have been tried, or none executes it.

    Raises:
        AssertionError: contradictions.
    """
    wrong = contradictions(notes, made)
    assert not wrong, "\n".join(["known_mutants.py gives a reason for mutants that are found:", *wrong])
    found = {m.copies for m in made if m.key in notes.found}
    return [_outcome(notes, mutant, mutant.copies in found) for mutant in made]


def _outcome(notes: Notes, mutant: Mutant, found_elsewhere: bool) -> str:
    if mutant.key in notes.found:
        return "found"
    names = notes.scenarios_of(mutant)
    if not names:
        return "not executed" if found_elsewhere or known(mutant) or refused(mutant) else "open"
    if why := known(mutant):
        return "unseen" if why in UNSEEN else "equivalent"
    if any((name, seed) not in notes.clean[mutant.key] for name in names for seed in SEEDS):
        return "open"
    return "not executed" if refused(mutant) else "missed"  # it was not in those plays: waits differ from play to play


def table(notes: Notes, made: Sequence[Mutant]) -> str:
    """A line a kernel."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant, end in zip(made, outcomes(notes, made), strict=True):
        for row in (mutant.kernel, "all"):
            counts[row].update(("made", end))
    lines = [f"{'mutants of ' + notes.arch:28}" + "".join(f"{name:>14}" for name in COLUMNS)]
    return "\n".join(lines + [f"{k:28}" + "".join(f"{c[n]:14}" for n in COLUMNS) for k, c in counts.items()])


if __name__ == "__main__":
    sys.exit(main())
