"""The dashboard and the alert rules name metrics and labels that are served, and nothing else."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.uccl_ep.observe.samples import running
from uccl_ep import examples
from uccl_ep.observe.metrics import Collector
from uccl_ep.observe.watch import Watcher
from uccl_ep.settings import settings

FOLDER = Path(examples.__file__).parent / "monitoring"
ALERTS = (FOLDER / "alerts.yaml").read_text(encoding="utf-8")
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "grafana.json").read_text(encoding="utf-8"))
FUNCTIONS = {"sum", "by", "on", "and", "or", "rate", "increase", "histogram_quantile", "topk", "count", "min", "vector",
             "group_left"}  # fmt: skip


@pytest.fixture(scope="module")
def served() -> Iterator[dict[str, set[str]]]:
    """Labels by name, of all that a job of two nodes serves: with `le` of a histogram's buckets."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"RANKS_PER_NODE": 1, "TIMEOUT_S": 30, "DEVICE": "cpu"}.items():
            patch.setenv(f"UCCL_EP_{name}", str(value))
        settings.cache_clear()
        finished = threading.Event()
        with running(2, lambda rank, buffer: finished.set()):
            assert finished.wait(30), "no rank has come through a step"
            registry = CollectorRegistry()
            registry.register(Collector(Watcher(os.getpid())))
            found: dict[str, set[str]] = {}
            for family in registry.collect():
                for sample in family.samples:
                    found.setdefault(sample.name, set()).update(sample.labels)
    settings.cache_clear()
    yield found


def rules() -> dict[str, str]:
    """The expression of each alert, by its name; a folded one as one line."""
    blocks = re.split(r"^      - alert: ", ALERTS, flags=re.M)[1:]
    found = {}
    for block in blocks:
        (expression,) = re.findall(r"^        expr: (.*?)(?=^        \w+:)", block, re.M | re.S)
        found[block.splitlines()[0]] = " ".join(expression.removeprefix(">-").split())
    return found


def panels() -> Iterator[tuple[str, str]]:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


QUERIES = [*rules().items(), *panels()]


@pytest.mark.parametrize(("title", "query"), QUERIES, ids=[title for title, _ in QUERIES])
def test_monitoring_every_name_is_served(title: str, query: str, served: dict[str, set[str]]) -> None:
    names = re.findall(r"uccl_ep_\w+", query)
    assert names and set(names) <= served.keys(), set(names) - served.keys()
    labels = set().union(*(served[name] for name in names))
    words = set(re.findall(r"[a-z_]+", re.sub(r"uccl_ep_\w+|\$\w+|\[[^]]*\]", "", query))) - FUNCTIONS
    assert words <= labels, words - labels
    assert query.count("(") == query.count(")") and query.count("{") == query.count("}")


def test_monitoring_annotations_name_labels_of_their_rule() -> None:
    blocks = re.split(r"^      - alert: ", ALERTS, flags=re.M)[1:]
    assert len(blocks) == len(rules()) == 8
    for block in blocks:
        assert "summary: " in block and "what_to_do: " in block and "severity: " in block
        grouped = re.search(r"by \(([^)]*)\)", block)
        for label in re.findall(r"\$labels\.(\w+)", block):
            assert grouped is None or "uccl_ep_up == 0" in block or label in grouped[1].split(", "), (block, label)


def test_monitoring_panels_have_a_place_of_their_own() -> None:
    places = [(p["gridPos"]["x"] + x, p["gridPos"]["y"] + y) for p in DASHBOARD["panels"]
              for x in range(p["gridPos"]["w"]) for y in range(p["gridPos"]["h"])]  # fmt: skip
    assert len(places) == len(set(places)) and max(x for x, _ in places) < 24
    assert len({p["id"] for p in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert all(p["description"] for p in DASHBOARD["panels"])


def test_monitoring_files_are_yaml() -> None:
    yaml = pytest.importorskip("yaml", reason="NOT RUN: no PyYAML here (make docs installs it)")
    (group,) = yaml.safe_load(ALERTS)["groups"]
    assert {rule["alert"]: rule["expr"] for rule in group["rules"]} == rules()
    scrape = yaml.safe_load((FOLDER / "prometheus.yaml").read_text(encoding="utf-8"))
    assert scrape["rule_files"] == ["alerts.yaml"] and scrape["scrape_configs"][0]["job_name"] == "uccl-ep"
