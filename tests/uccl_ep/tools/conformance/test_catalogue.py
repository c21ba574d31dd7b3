"""The catalogue: every file's checks, in order, each with a part in its docstring; choosing some."""

from __future__ import annotations

import re

import pytest

from uccl_ep import InvalidArgument
from uccl_ep.tools.conformance.catalogue import FILES, chosen


def test_catalogue_has_every_file_in_order() -> None:
    files = [check.body.__module__.rpartition(".")[2] for check in chosen()]
    assert list(dict.fromkeys(files)) == list(FILES)
    assert len(files) > 90


def test_catalogue_every_check_cites_its_part() -> None:
    for check in chosen():
        cited = re.findall(r"[A-D]\.\d", check.body.__doc__ or "")
        assert cited, check.name
        assert any(part.startswith(check.part) for part in cited), f"{check.name}: {check.part}, cites {cited}"
        assert check.summary.endswith("."), check.summary


def test_catalogue_chooses() -> None:
    names = [check.name for check in chosen(["mask", "throughput_combine_sum"])]
    assert "throughput_combine_sum" in names and "mask_leaves_a_rank_out" in names and len(names) == 4
    with pytest.raises(InvalidArgument, match="--only must be .*; got 'nonsense'. .*names_at_the_top"):
        chosen(["mask", "nonsense"])
