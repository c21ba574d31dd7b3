"""Integrators' pages: one shape, commands to paste as they stand, and flags that the release that is tested has.

A flag is one that the driver runs (as the option behind it), or stands in NEEDS_GPU: no CPU can start that command. The
slow test looks for both kinds in the installed release.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.generate.markdown import Block, blocks
from tests.integrations.installed import python_or_skip
from tests.integrations.other_python import site_of
from tests.integrations.versions import Integrator, integrators

FOLDER = Path(__file__).parent
PAGES = {path.parent.name: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*/README.md"))}
SECTIONS = ["Versions", "Install and run", "The log line that proves it", "How to undo", "Known limits"]
OURS = {"--nproc-per-node", "--nnodes", "--node-rank", "--master-addr", "--master-port", "--depth", "--branch"}
"""torchrun's and git's."""
NEEDS_GPU = {
    "megatron": "--moe-permute-fusion",
    "sglang": "--model-path --trust-remote-code --tp-size --moe-a2a-backend --dist-init-addr --deepep-config "
    "--elastic-ep-backend",
    "torchtitan": "--module --config --parallelism.expert_parallel_degree",
    "vllm": "--data-parallel-size --tensor-parallel-size --enable-expert-parallel --all2all-backend --headless "
    "--data-parallel-size-local --data-parallel-address --data-parallel-rpc-port --data-parallel-start-rank "
    "--enable-dbo",
}
OF_PRETRAIN_GPT = (  # pretrain_gpt.py is not in the wheel; Megatron-LM core_v0.19.0's own parser has accepted them
    "--seq-length --max-position-embeddings --micro-batch-size --global-batch-size --train-iters --lr --min-lr "
    "--tokenizer-type --vocab-size --mock-data --log-interval --eval-iters --num-experts --moe-enable-deepep"
).split()
INSTALLED = {one.name: one for one in integrators() if one.name in PAGES}


def flags(page: str) -> set[str]:
    """The integrator's own flags that its page names, in commands and in prose, but for what is told of the tests."""
    text = PAGES[page].split("<details")[0]
    code = " ".join([*re.findall(r"`([^`\n]+)`", text), *(block.body for block in blocks(text))])
    return set(re.findall(r"(?<![\w-])--[a-z][\w.-]*\w", code)) - OURS


def words(flag: str) -> list[str]:
    """How a flag is written in sources: as it stands, or as the field that it is made of."""
    return [flag, flag.removeprefix("--").rpartition(".")[2].replace("-", "_")]


def commands(page: str) -> list[Block]:
    return [block for block in blocks(PAGES[page]) if block.language == "bash"]


@pytest.mark.parametrize("page", PAGES)
def test_pages_have_one_shape(page: str) -> None:
    text = PAGES[page]
    above, fold, below = text.partition('<details markdown="1">\n<summary>')
    assert re.findall(r"^## (.+)$", above, re.M) == SECTIONS
    assert fold and below.rstrip().endswith("\n\n</details>") and "## " not in below
    assert "Shims" in below and "`driver.py`" in below
    assert INSTALLED[page].version in above.split("## Install")[0], "the version that is tested"
    proof = above.split("## The log line that proves it")[1].split("\n## ")[0]
    assert re.search(r"^uccl-ep: device \w+: \d+ ranks on \d+ node\(s\)$", proof, re.M)
    assert "`uccl-ep run --`" in above.split("## How to undo")[1].split("\n## ")[0]


@pytest.mark.parametrize("page", PAGES)
def test_pages_commands_can_be_pasted(page: str) -> None:
    assert len(commands(page)) >= 3
    for block in commands(page):
        assert "..." not in block.body and "<" not in block.body, f"{page}:{block.line}: something is left out"
        assert "pip install uccl-ep" not in block.body, f"{page}:{block.line}: no index has it"


@pytest.mark.parametrize("page", PAGES)
def test_pages_flags_are_run_or_need_a_gpu(page: str) -> None:
    drivers = " ".join(path.read_text(encoding="utf-8") for path in (FOLDER / page).glob("*.py"))
    listed = set(NEEDS_GPU[page].split()) | (set(OF_PRETRAIN_GPT) if page == "megatron" else set())
    run = {flag for flag in flags(page) if re.search(rf"\b{words(flag)[1]}\b", drivers)}
    assert flags(page) - run == listed - run, "a flag that nothing runs, or a listed one that no page names"


def test_pages_flags_are_found() -> None:
    assert {"--deepep-mode", "--moe-a2a-backend", "--dist-init-addr"} <= flags("sglang")
    assert words("--parallelism.expert_parallel_degree")[1] == "expert_parallel_degree"


@pytest.mark.slow  # reads every source of a release, which is installed first
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", [page for page in PAGES if not INSTALLED[page].by_name])
def test_pages_flags_exist_in_the_release(page: str) -> None:
    missing = absent(INSTALLED[page], flags(page) - set(OF_PRETRAIN_GPT))
    assert not missing, f"{page} {INSTALLED[page].version} has no {missing}"


def test_pages_table_of_releases_has_what_is_pinned() -> None:
    text = (FOLDER.parents[1] / "docs/pages/integrators/index.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| `([\w-]+)`[^|]* \| ([\w.]+) \| [\w.]+ \| .+ \|$", text, re.M))
    assert told == {one.name: one.version for one in integrators()}


def absent(integrator: Integrator, wanted: set[str]) -> set[str]:
    """Those of the flags that no source of the installed release names."""
    python = python_or_skip(integrator)
    missing = set(wanted)
    package = integrator.package.split("-")[0]
    for path in (site_of(python.parents[1]) / package).rglob("*.py"):
        text = path.read_text(encoding="utf-8", errors="replace")
        missing = {flag for flag in missing if not any(word in text for word in words(flag))}
    return missing
