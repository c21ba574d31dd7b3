"""For tests of the conformance suite: checks run by ranks that are threads, and modules with one thing wrong."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

import uccl_ep
from uccl_ep import run_ranks
from uccl_ep.tools.conformance.catalogue import chosen
from uccl_ep.tools.conformance.runner import FAILED, PASSED, Outcome, run_checks
from uccl_ep.tools.conformance.world import World

RANKS, PER_NODE = 4, 2


def module_with(**names: Any) -> Any:
    """What looks like uccl_ep as a module, but for `names`."""
    own = {name: getattr(uccl_ep, name) for name in ("Buffer", "Config", "EventHandle", "EventOverlap")}
    return SimpleNamespace(**{"__name__": "wrong", "topk_idx_t": torch.int64, **own, **names})


def run(module: Any, only: Sequence[str], ranks: int = RANKS, per_node: int = PER_NODE) -> dict[str, Outcome]:
    """Outcomes by name of the checks whose name is in `only`, the same on every rank."""
    checks = [check for check in chosen(only) if check.name in only]
    assert len(checks) == len(only), only
    results = run_ranks(ranks, lambda group: run_checks(World(module, group, "cpu", per_node, 1), checks))
    assert all([(o.name, o.status, o.detail) for o in r] == [(o.name, o.status, o.detail) for o in results[0]]
               for r in results)  # fmt: skip
    return {outcome.name: outcome for outcome in results[0]}


def assert_red(module: Any, red: str, words: str = "", green: Sequence[str] = ()) -> None:
    """Check `red` fails and says `words`; the checks `green` pass: the fault is told where it is."""
    outcomes = run(module, [red, *green])
    assert outcomes[red].status == FAILED and words in outcomes[red].detail, outcomes[red]
    for name in green:
        assert outcomes[name].status == PASSED, outcomes[name]


class Wrong(uccl_ep.Buffer):
    """A Buffer whose subclasses get one thing wrong; subclasses change results by `after_<method>`."""

    def _changed(self, method: str, arguments: dict[str, Any], results: Any) -> Any:
        change = getattr(self, f"after_{method}", None)
        return results if change is None else change(arguments, results)

    def get_dispatch_layout(self, topk_idx: Any, num_experts: int, **arguments: Any) -> Any:
        return self._changed("layout", arguments, super().get_dispatch_layout(topk_idx, num_experts, **arguments))

    def dispatch(self, x: Any, **arguments: Any) -> Any:
        return self._changed("dispatch", {"x": x, **arguments}, super().dispatch(x, **arguments))

    def combine(self, x: Any, handle: Any, **arguments: Any) -> Any:
        return self._changed("combine", {"x": x, **arguments}, super().combine(x, handle, **arguments))

    def low_latency_dispatch(self, x: Any, ids: Any, m: int, experts: int, **arguments: Any) -> Any:
        results = super().low_latency_dispatch(x, ids, m, experts, **arguments)
        return self._changed("low_latency_dispatch", {"x": x, **arguments}, results)

    def low_latency_combine(self, x: Any, ids: Any, weights: Any, handle: Any, **arguments: Any) -> Any:
        results = super().low_latency_combine(x, ids, weights, handle, **arguments)
        return self._changed("low_latency_combine", {"ids": ids, "weights": weights, **arguments}, results)


def wrong(**methods: Any) -> Any:
    """A module whose Buffer is a Wrong with these methods."""
    return module_with(Buffer=type("Wrong", (Wrong,), methods))


def replaced(results: Any, **at: Any) -> tuple[Any, ...]:
    """`results` with the values at indices `_0`, `_1`, ... replaced."""
    changed = list(results)
    for index, value in at.items():
        changed[int(index[1:])] = value
    return tuple(changed)


class WrongElastic(uccl_ep.ElasticBuffer):
    """An ElasticBuffer whose subclasses get one thing wrong: `before_<method>(arguments)` may change the arguments in
    place, `after_<method>(arguments, results)` the results.
    """

    def _through(self, method: str, call: Any, arguments: dict[str, Any]) -> Any:
        getattr(self, f"before_{method}", lambda arguments: None)(arguments)
        results = call(**arguments)
        return getattr(self, f"after_{method}", lambda arguments, results: results)(arguments, results)

    @functools.wraps(uccl_ep.ElasticBuffer.dispatch)
    def dispatch(self, x: Any, **arguments: Any) -> Any:
        return self._through("dispatch", super().dispatch, {"x": x, **arguments})

    @functools.wraps(uccl_ep.ElasticBuffer.combine)
    def combine(self, x: Any, **arguments: Any) -> Any:
        return self._through("combine", super().combine, {"x": x, **arguments})


def wrong_elastic(**methods: Any) -> Any:
    """A module whose ElasticBuffer is a WrongElastic with these methods."""
    return module_with(ElasticBuffer=type("WrongElastic", (WrongElastic,), methods))
