"""Every promise of the written protocol holds in every state of every model, and every planted bug breaks one.

Spin comes from docker/install.sh. Without it these tests are skipped in a loud way, which CI does not accept
(UCCL_EP_REQUIRE_TOOLS=1 makes a missing tool a failure).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.model import models, spin
from tests.model.models import BUGS, MODELS, Bug, Model


@pytest.fixture(autouse=True)
def _tools() -> None:
    if missing := spin.missing():
        why = f"{' and '.join(missing)} not installed, so the protocol's model was NOT checked: run docker/install.sh"
        if os.environ.get("UCCL_EP_REQUIRE_TOOLS", "0") != "0":
            pytest.fail(why)
        pytest.skip(why)


def check_model(model: Model, folder: Path) -> None:
    outcome = spin.check(model.file, model.defines, folder)
    for promise in model.promises:
        result = "BROKEN" if promise == outcome.broken else "holds"
        print(f"{model.name:32} {promise:42} {outcome.states:9} states {outcome.depth:5} deep "
              f"{outcome.seconds:6.1f} s  {result}")  # fmt: skip
    assert outcome.broken == "", f"{model.name}: {outcome.broken} is broken"
    if model.fair:
        outcome = spin.check(model.file, model.defines, folder / "fair", fair=True)
        print(f"{model.name:32} {'progress, weakly fair':42} {outcome.states:9} states {outcome.depth:5} deep "
              f"{outcome.seconds:6.1f} s  {'BROKEN' if outcome.broken else 'holds'}")  # fmt: skip
        assert outcome.broken == ""


@pytest.mark.parametrize("model", [m for m in MODELS if m.quick], ids=lambda m: m.name)
def test_model_quick(model: Model, tmp_path: Path) -> None:
    check_model(model, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(700)  # millions of states
@pytest.mark.parametrize("model", [m for m in MODELS if not m.quick], ids=lambda m: m.name)
def test_model_large(model: Model, tmp_path: Path) -> None:
    check_model(model, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("bug", BUGS, ids=lambda b: f"{b.file}-{b.define}")
def test_model_finds_planted_bug(bug: Bug, tmp_path: Path) -> None:
    outcome = spin.check(bug.file, (*bug.also, bug.define), tmp_path)
    print(f"{bug.define:42} {outcome.states:9} states {outcome.depth:5} deep  breaks {outcome.broken or 'NOTHING'}")
    assert outcome.broken in bug.breaks


def test_model_every_promise_can_be_broken() -> None:
    for model in MODELS:
        text = (spin.FOLDER / model.file).read_text()
        broken = {promise for bug in BUGS if bug.file == model.file for promise in bug.breaks}
        assert set(model.promises) == broken, model.file
        asserted = {p.split(")")[0] for p in text.split("PROMISE(")[1:]}
        assert asserted | {"progress"} == set(model.promises), model.file
    for bug in BUGS:
        assert bug.define in (spin.FOLDER / bug.file).read_text()
    assert len(models.BUGS) == len({(b.file, b.define) for b in BUGS})


def test_model_actions_name_existing_files() -> None:
    for file in {m.file for m in MODELS}:
        text = (spin.FOLDER / file).read_text()
        named = {w.strip(",.:;") for w in text.split() if w.startswith(("proxy/", "kernels/", "uccl_ep/"))}
        assert named, file
        missing = [n for n in named if not (spin.FOLDER.parents[1] / n).exists()]
        assert not missing, f"{file}: {missing}"


def test_model_report_is_read() -> None:
    held = "Full statespace search\ndepth reached 9, errors: 0\n  123 states, stored\n"
    assert spin.parse(held, 1.0).broken == ""
    assert spin.parse(held, 1.0).states == 123
    bad = "pan:1: assertion violated no_x (at depth 5)\ndepth reached 9, errors: 1\n 1.5e+06 states, stored\n"
    assert spin.parse(bad, 1.0).broken == "no_x"
    assert spin.parse(bad, 1.0).states == 1_500_000
    stuck = "pan:1: invalid end state (at depth 5)\ndepth reached 9, errors: 1\n 12 states, stored\n"
    assert spin.parse(stuck, 1.0).broken == "progress"
    with pytest.raises(spin.SpinError):
        spin.parse(held + "error: max search depth too small\n", 1.0)
    with pytest.raises(spin.SpinError):
        spin.parse("killed", 1.0)
