"""Texts that are values, and texts that are none; the rows that use them are tested in test_settings.py."""

from __future__ import annotations

import pytest

from uccl_ep.system import setting_values as values


def test_setting_values_keep_their_order_and_no_repeat() -> None:
    assert values.cpu_list("8,0, 2-4,2") == (8, 0, 2, 3, 4)
    assert values.nics("mlx5_0, mlx5_1:2") == "mlx5_0,mlx5_1:2"


@pytest.mark.parametrize(
    "read, text",
    [(values.nics, "a,^b"), (values.address, "::"), (values.power_of_two, "6"), (values.num_bytes, "8 Moo")],
)
def test_setting_values_refuse(read: object, text: str) -> None:
    with pytest.raises(ValueError):
        read(text)  # type: ignore[operator]
