"""The tables of every build of DeepEP beside what uccl_ep answers, from tests/builds and the drop-in itself."""

from __future__ import annotations

import functools
from collections import defaultdict

from docs.generate.markdown import table
from tests.builds.record import BUILDS, Answer, answer, recorded
from uccl_ep import install_as_deep_ep, uninstall_as_deep_ep
from uccl_ep.drop_in import is_installed

Answers = dict[str, dict[str, Answer]]  # name -> build -> what is answered


@functools.cache
def answers() -> Answers:
    """For every name of every build. The drop-in is on meanwhile, as users have it."""
    packages = {build.name: build.package for build in BUILDS}
    was_on = is_installed()
    install_as_deep_ep()
    try:
        return {
            name: {
                build: answer(packages[build], name, signature) for signature, of in signatures.items() for build in of
            }
            for name, signatures in recorded()["names"].items()
        }
    finally:
        if not was_on:
            uninstall_as_deep_ep()


def builds_table() -> str:
    """A row for each class and module, a column for each build: names present, and how many more are refused."""
    groups: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, of in answers().items():
        for build, found in of.items():
            groups[_group(name)][build].append(found.kind)
    versions = recorded()["versions"]
    headings = ["", *(f"{build.name} {versions[build.name]}" for build in BUILDS)]
    rows = [
        [f"`{group}`", *(_counted(of.get(build.name, [])) for build in BUILDS)] for group, of in sorted(groups.items())
    ]
    kinds = {build.name: [found.kind for of in answers().values() if (found := of.get(build.name))] for build in BUILDS}
    rows.append(["**all**", *(_counted(kinds[build.name]) for build in BUILDS)])
    return table(headings, rows)


def refused_table() -> str:
    """A row for each reason: the names that are refused for it, and the builds that have them."""
    reasons: dict[str, tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
    for name, of in answers().items():
        for build, found in of.items():
            if found.kind == "refused":
                reasons[found.words][0].add(_shortest(name))
                reasons[found.words][1].add(build)
    order = [build.name for build in BUILDS]
    rows = [
        [", ".join(f"`{name}`" for name in sorted(names)), why, ", ".join(sorted(of, key=order.index))]
        for why, (names, of) in sorted(reasons.items(), key=lambda item: min(item[1][0]))
    ]
    return table(["names", "why", "in"], rows)


def moved_table() -> str:
    """A row for each call whose arguments stand elsewhere in some build, from which argument on."""
    rows: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, of in answers().items():
        for build, found in of.items():
            if found.by_name_from:
                rows[name, found.by_name_from].append(build)
    return table(
        ["call", "by name from", "in"],
        [[f"`{name}`", f"`{argument}`", ", ".join(of)] for (name, argument), of in sorted(rows.items())],
    )


def _group(name: str) -> str:
    """A method's class, a module for what it holds, `deep_ep` for what stands at the top."""
    parts = name.split(".")
    owner = parts[:-1] if len(parts) > 1 else []
    if recorded()["names"][name].keys() == {"module"}:
        owner = parts
    return ".".join(owner) or "deep_ep"


def _shortest(name: str) -> str:
    """A class or function without its module: `BucketBuffer` for `buffers.bucket.BucketBuffer`."""
    parts = name.split(".")
    return name if parts[0][0].isupper() else parts[-1]


def _counted(kinds: list[str]) -> str:
    if not kinds:
        return "–"
    refused, absent = kinds.count("refused"), kinds.count("absent")
    cell = str(kinds.count("present"))
    cell += f" + {refused} refused" if refused else ""
    return cell + (f" + {absent} **absent**" if absent else "")
