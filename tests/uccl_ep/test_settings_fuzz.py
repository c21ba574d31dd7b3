"""Any text in any variable: a checked value that reads back as itself, or a refusal that names the variable."""

from __future__ import annotations

import tracemalloc
import warnings

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from uccl_ep.errors import InvalidArgument, one_of
from uccl_ep.settings import VARIABLES, Settings, Variable
from uccl_ep.sizes import parse_bytes

# What parsers look at, so that texts get past their first check.
_PIECES = st.sampled_from(
    [*"0 1 7 64 512 1024 65535 65536 1048576 18446744073709551615 - + _ . , e 1e9 nan inf 0x k KiB MiB gb p".split(),
     *"auto cpu cuda hip : tcp thread process on no TRUE 127.0.0.1 0.0.0.0 ::1 :: fe80::1%lo % / ~ .. ^".split(),
     " ", "\t", "\n", "\0", "\u0663", "\u212a", "\u0130", "9" * 50, "9" * 5000]
)  # fmt: skip
TEXTS = st.lists(_PIECES | st.text(max_size=3), max_size=6).map("".join)


@pytest.mark.timeout(120)
@given(st.sampled_from(VARIABLES), TEXTS)
@example(next(v for v in VARIABLES if v.field == "cache_dir"), "a\0b")
@example(next(v for v in VARIABLES if v.field == "max_in_flight_bytes"), "9" * 5000)
def test_settings_fuzz_any_text_is_a_value_or_refused(variable: Variable, text: str) -> None:
    try:
        parsed = Settings.from_environment({variable.name: text})
    except InvalidArgument as error:
        assert error.argument == variable.name and one_of(variable.allowed.split(" | ")) in str(error)
        return
    value = getattr(parsed, variable.field)
    assert type(value) is type(variable.default)
    if text.strip() == "":
        assert parsed == Settings()
        return
    # As text again: the same value.
    shown = ",".join(map(str, value)) if isinstance(value, tuple) else str(int(value) if value is True else value)
    assert shown.strip() == "" or getattr(Settings.from_environment({variable.name: shown}), variable.field) == value


@given(st.dictionaries(st.text(max_size=6).map("UCCL_EP_".__add__), TEXTS, max_size=3))
def test_settings_fuzz_unknown_names_only_warn(environment: dict[str, str]) -> None:
    known = {variable.name for variable in VARIABLES}
    unknown = {name: text for name, text in environment.items() if name not in known}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert Settings.from_environment(unknown) == Settings()
    assert len(caught) == len(unknown)


@given(TEXTS)
@example("9" * 5000)
@example("1." + "0" * 5000)
def test_settings_fuzz_sizes(text: str) -> None:
    try:
        number = parse_bytes(text)
    except InvalidArgument as error:
        assert error.argument == "size"
        return
    assert number >= 0 and parse_bytes(str(number)) == number


def test_settings_fuzz_a_list_of_cpus_costs_no_more_than_there_can_be() -> None:
    tracemalloc.start()
    try:
        parsed = Settings.from_environment({"UCCL_EP_PIN_CPUS": "0-65535," * 40 + "0"})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert parsed.pin_cpus == tuple(range(65536))
    assert peak < 16 << 20  # all forty would be more
