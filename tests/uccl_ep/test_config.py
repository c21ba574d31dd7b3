"""Config: DeepEP's golden buffer sizes, its refusals, its tables, and our rule for rank counts it does not list."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from uccl_ep.config import Config, combine_config, dispatch_config

HIDDEN_BYTES = 7168 * 2


@pytest.mark.parametrize(
    ("ranks", "nvl", "rdma"),
    [
        (2, 83_927_552, 0),
        (4, 167_854_976, 0),
        (8, 335_709_824, 0),
        (16, 377_673_984, 91_887_744),
        (32, None, 168_023_680),
        (64, None, 336_047_360),
    ],
)
def test_dispatch_sizes_are_deepeps(ranks: int, nvl: int | None, rdma: int) -> None:
    config = dispatch_config(ranks)
    if nvl is not None:
        assert config.get_nvl_buffer_size_hint(HIDDEN_BYTES, ranks) == nvl
    assert config.get_rdma_buffer_size_hint(HIDDEN_BYTES, ranks) == rdma


def test_combine_size_is_deepeps() -> None:
    assert combine_config(16).get_rdma_buffer_size_hint(HIDDEN_BYTES, 16) == 86_637_184


def test_smallest_size_by_hand() -> None:
    # One channel, one rank, one node, a queue of 2 slots: 5 ints; a row of 16 + 8 + 1024 + 512 + 512 bytes.
    assert Config(2, 1, 2).get_nvl_buffer_size_hint(16, 1) == 4224  # 20 + 2 * 2072 = 4164, rounded up to 33 * 128
    # Two nodes of which one is a lone rank: 1 * 2 * 18 * 2 * 4 + 2 * 1 * 2 * 2 * (2072 + 16) = 16992 -> 133 * 128.
    assert Config(2, 1, 2, 1, 2).get_rdma_buffer_size_hint(16, 9) == 17024


def test_fields_are_readable_and_names_are_deepeps() -> None:
    config = Config(24, 8, 256, 20, 128)
    assert dataclasses.asdict(config) == {
        "num_sms": 24,
        "num_max_nvl_chunked_send_tokens": 8,
        "num_max_nvl_chunked_recv_tokens": 256,
        "num_max_rdma_chunked_send_tokens": 20,
        "num_max_rdma_chunked_recv_tokens": 140,  # rounded up to a multiple of 20
    }
    shown = (config.num_channels, config.nvl_send, config.nvl_recv, config.rdma_send, config.rdma_recv)
    assert shown == (12, 8, 256, 20, 140)
    assert Config(**json.loads(json.dumps(dataclasses.asdict(config)))) == config
    assert Config(20, 6, 256) == Config(num_sms=20, num_max_nvl_chunked_send_tokens=6)
    assert Config().rdma_recv == 258
    assert Config(num_sms=torch.tensor(20)).num_sms == 20  # type: ignore[arg-type]
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.num_sms = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"num_sms": -1}, "num_sms must be .*0 or more.*; got -1."),
        ({"num_sms": 20.0}, "num_sms must be .*whole number.*; got 20.0."),
        ({"num_max_nvl_chunked_send_tokens": 0}, "nvl_chunked_send_tokens must be .*1 or more.*; got 0."),
        ({"num_max_nvl_chunked_send_tokens": 256}, "send_tokens must be .*less than .*256.*; got 256."),
        ({"num_max_rdma_chunked_recv_tokens": 0}, "rdma_chunked_recv_tokens must be .*1 or more.*; got 0."),
        ({"num_max_rdma_chunked_send_tokens": 256}, "send_tokens must be .*at most half of .*256.*; got 256."),
        ({"num_max_rdma_chunked_send_tokens": 300}, "rounded up to 300"),
    ],
)
def test_refusals_name_argument_value_and_what_is_allowed(arguments: dict[str, int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Config(**arguments)


def test_limits_are_accepted() -> None:
    assert Config(0, 1, 2, 1, 2).num_channels == 0
    assert Config(20, 255, 256, 128, 256).rdma_recv == 256
    assert Config(20, 6, 256, 128, 130).rdma_recv == 256  # 130 alone would be too small: rounding comes first


def test_hints_refuse_what_has_no_meaning() -> None:
    with pytest.raises(ValueError, match="hidden_bytes must be .*; got 0."):
        Config().get_nvl_buffer_size_hint(0, 8)
    with pytest.raises(ValueError, match="num_ranks must be .*; got 0."):
        Config().get_rdma_buffer_size_hint(16, 0)
    assert Config(21).get_rdma_buffer_size_hint(16, 8) == 0
    with pytest.raises(ValueError, match="num_sms must be .*even.*; got 21."):
        Config(21).get_nvl_buffer_size_hint(16, 16)


@pytest.mark.parametrize(
    ("ranks", "listed"), [(1, 2), (3, 4), (5, 8), (9, 16), (12, 16), (17, 24), (25, 32), (33, 48), (65, 96), (97, 128),
                          (129, 144), (145, 160), (161, 160), (4096, 160)]
)  # fmt: skip
def test_unlisted_counts_take_the_next_listed_one(ranks: int, listed: int) -> None:
    assert dispatch_config(ranks) == dispatch_config(listed)
    assert combine_config(ranks) == combine_config(listed)


@pytest.mark.parametrize(
    ("ranks", "dispatch", "combine"),
    [
        (2, (24, 256, 6, 132), (10, 256, 6, 132)),
        (4, (6, 256, 6, 132), (9, 256, 6, 132)),
        (8, (6, 256, 6, 132), (4, 256, 6, 132)),
        (16, (36, 288, 20, 140), (4, 288, 12, 132)),
        (24, (32, 288, 8, 128), (1, 288, 8, 128)),
        (48, (32, 288, 8, 128), (1, 288, 8, 128)),
        (96, (20, 480, 12, 132), (1, 480, 8, 128)),
        (128, (20, 560, 12, 132), (1, 560, 8, 128)),
        (144, (32, 720, 12, 132), (2, 720, 8, 128)),
        (160, (28, 720, 12, 132), (2, 720, 8, 128)),
    ],
)
def test_tables_are_deepeps(ranks: int, dispatch: tuple[int, ...], combine: tuple[int, ...]) -> None:
    assert dispatch_config(ranks, 24) == Config(24, *dispatch)
    assert combine_config(ranks) == Config(20, *combine)


def test_tables_refuse_no_ranks() -> None:
    with pytest.raises(ValueError, match="num_ranks must be .*1 or more.*; got 0."):
        dispatch_config(0)


@given(ranks=st.integers(1, 500), hidden_bytes=st.integers(1, 1 << 16))
def test_sizes_grow_with_ranks_and_are_aligned(ranks: int, hidden_bytes: int) -> None:
    config = Config()
    for hint in (config.get_nvl_buffer_size_hint, config.get_rdma_buffer_size_hint):
        assert hint(hidden_bytes, ranks) % 128 == 0
        assert 0 <= hint(hidden_bytes, ranks) <= hint(hidden_bytes, ranks + 1)
        assert hint(hidden_bytes, ranks) <= hint(hidden_bytes + 1, ranks)
    whole_nodes = -(-ranks // 8) * 8
    if ranks > 8:  # a node that is not full costs as much as a full one
        same = config.get_rdma_buffer_size_hint(hidden_bytes, whole_nodes)
        assert config.get_rdma_buffer_size_hint(hidden_bytes, ranks) == same
