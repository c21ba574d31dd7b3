"""Settings: one table, checked values, unknown names that warn, and documentation that cannot drift from the parser."""

from __future__ import annotations

import dataclasses
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uccl_ep.errors import InvalidArgument, one_of
from uccl_ep.settings import VARIABLES, Settings, describe, settings

# name without prefix, text, value: one good non-default value for every variable
GOOD = [
    ("RANKS_PER_NODE", "8", 8),
    ("MNNVL", "1", "1"),
    ("TRANSPORT", "TCP", "tcp"),
    ("PROXY", "process", "process"),
    ("PROXY_THREADS", "4", 4),
    ("RINGS", " 7 ", 7),
    ("RING_CAPACITY", "4096", 4096),
    ("MAX_IN_FLIGHT", "512", 512),
    ("MAX_IN_FLIGHT_BYTES", "1.5MiB", 3 << 19),
    ("LOW_LATENCY_COMBINE", "Node", "node"),
    ("LOW_LATENCY_TOPK", "8", 8),
    ("TIMEOUT_S", "0.25", 0.25),
    ("INTERFACE", "10.0.0.7", "10.0.0.7"),
    ("PIN_CPUS", "8,0, 2-4,2", (8, 0, 2, 3, 4)),
    ("HOST_BLOCKS", "3", 3),
    ("HOST_THREADS", "2", 2),
    ("DEVICE", "cpu", "cpu"),
    ("DEVICE", "CUDA:1", "cuda:1"),
    ("EXPLAIN", "Yes", True),
    ("SHUFFLE_SEED", "18446744073709551615", 2**64 - 1),
    ("CACHE_DIR", "/somewhere//kernels/", "/somewhere/kernels"),
    ("NICS", "mlx5_0, mlx5_1:2,rdmap*", "mlx5_0,mlx5_1:2,rdmap*"),
    ("NICS", "^ibp115s0f0,^ibp116s0f0:1", "^ibp115s0f0,^ibp116s0f0:1"),
    ("GID_INDEX", "0", 0),
    ("GPU_MEMORY", "DMABUF", "dmabuf"),
    ("PROVIDER", "tcp;ofi_rxm", "tcp;ofi_rxm"),
    ("QUEUE_PAIRS", "4", 4),
    ("SERVICE_LEVEL", "15", 15),
    ("TRAFFIC_CLASS", "104", 104),
    ("HOP_LIMIT", "255", 255),
    ("MTU", "4096", 4096),
    ("UDP_SOURCE_PORT", "49152", 49152),
    ("IB_TIMEOUT", "14", 14),
    ("MAX_IN_FLIGHT_BYTES_ALL", "3MiB", 3 << 20),
    ("MAX_IN_FLIGHT_BYTES_ALL", "0", 0),
    ("PROXY_IDLE", "SPIN", "spin"),
    ("IB_RETRY_CNT", "6", 6),
    ("RELAXED_ORDERING", "0", False),
    ("OBSERVE_DIR", "/tmp/seen", "/tmp/seen"),
    ("METRICS_PORT", "9400", 9400),
    ("JOB_ID", "run-7.a", "run-7.a"),
    ("FLIGHT_RECORDER", "/tmp/records/", "/tmp/records"),
    ("FLIGHT_RECORDER", "OFF", "off"),
    ("TRACE", "/tmp/trace", "/tmp/trace"),
    ("AS_DEEP_EP", "1", True),
]
BAD = [
    ("RANKS_PER_NODE", "-1"),
    ("RANKS_PER_NODE", "65"),
    ("RANKS_PER_NODE", "8.0"),
    ("MNNVL", "yes"),
    ("TRANSPORT", "infiniband"),
    ("PROXY", "fork"),
    ("PROXY_THREADS", "0"),
    ("RINGS", "two"),
    ("RING_CAPACITY", "1000"),
    ("RING_CAPACITY", "1"),
    ("MAX_IN_FLIGHT", "513"),
    ("MAX_IN_FLIGHT_BYTES", "15"),
    ("MAX_IN_FLIGHT_BYTES", "8 Moo"),
    ("LOW_LATENCY_COMBINE", "tree"),
    ("LOW_LATENCY_TOPK", "0"),
    ("LOW_LATENCY_TOPK", "33"),
    ("TIMEOUT_S", "0"),
    ("TIMEOUT_S", "nan"),
    ("TIMEOUT_S", "inf"),
    ("INTERFACE", "eth0"),
    ("INTERFACE", "0.0.0.0"),
    ("PIN_CPUS", "3-1"),
    ("PIN_CPUS", "1,,2"),
    ("HOST_BLOCKS", "0x10"),
    ("HOST_THREADS", "-1"),
    ("DEVICE", "rocm"),
    ("EXPLAIN", "maybe"),
    ("SHUFFLE_SEED", "18446744073709551616"),
    ("CACHE_DIR", __file__),
    ("NICS", "mlx5_0,^mlx5_1"),
    ("NICS", "mlx5_0:0"),
    ("NICS", "mlx5_0,"),
    ("GID_INDEX", "-2"),
    ("GPU_MEMORY", "peermem"),
    ("PROVIDER", "tcp shm"),
    ("QUEUE_PAIRS", "0"),
    ("SERVICE_LEVEL", "16"),
    ("TRAFFIC_CLASS", "256"),
    ("HOP_LIMIT", "0"),
    ("MTU", "1500"),
    ("UDP_SOURCE_PORT", "65536"),
    ("IB_TIMEOUT", "0"),
    ("MAX_IN_FLIGHT_BYTES_ALL", "15"),
    ("PROXY_IDLE", "sleep"),
    ("IB_TIMEOUT", "32"),
    ("IB_RETRY_CNT", "8"),
    ("RELAXED_ORDERING", "strict"),
    ("OBSERVE_DIR", __file__),
    ("METRICS_PORT", "65536"),
    ("JOB_ID", "two words"),
    ("FLIGHT_RECORDER", __file__),
    ("TRACE", __file__),
]


def test_defaults_of_an_empty_environment() -> None:
    assert Settings.from_environment({}) == Settings()
    assert dataclasses.asdict(Settings()) == {
        "ranks_per_node": 0,
        "mnnvl": "auto",
        "transport": "auto",
        "proxy": "thread",
        "proxy_threads": 1,
        "rings": 2,
        "ring_capacity": 1024,
        "max_in_flight": 64,
        "max_in_flight_bytes": 8388608,
        "max_in_flight_bytes_all": 0,
        "proxy_idle": "auto",
        "low_latency_combine": "direct",
        "low_latency_topk": 32,
        "timeout_s": 100.0,
        "interface": "",
        "pin_cpus": (),
        "host_blocks": 0,
        "host_threads": 1,
        "device": "auto",
        "explain": False,
        "shuffle_seed": 0,
        "cache_dir": "",
        "nics": "",
        "gid_index": -1,
        "gpu_memory": "auto",
        "provider": "",
        "queue_pairs": 1,
        "service_level": 0,
        "traffic_class": 0,
        "hop_limit": 64,
        "mtu": 0,
        "udp_source_port": 0,
        "ib_timeout": 20,
        "ib_retry_cnt": 7,
        "relaxed_ordering": True,
        "observe_dir": "",
        "metrics_port": 0,
        "job_id": "",
        "flight_recorder": "",
        "trace": "",
        "as_deep_ep": False,
        "site": (),
    }


def test_table_and_fields_are_the_same_set() -> None:
    assert [*(v.field for v in VARIABLES), "site"] == [field.name for field in dataclasses.fields(Settings)]
    assert {name for name, _, _ in GOOD} == {v.name.removeprefix("UCCL_EP_") for v in VARIABLES}


@pytest.mark.parametrize(("name", "text", "value"), GOOD)
def test_good_value(name: str, text: str, value: object) -> None:
    parsed = Settings.from_environment({f"UCCL_EP_{name}": text})
    got = getattr(parsed, name.lower())
    assert got == value and type(got) is type(value)
    assert type(got) is type(getattr(Settings(), name.lower()))
    assert dataclasses.replace(parsed, **{name.lower(): getattr(Settings(), name.lower())}) == Settings()


@pytest.mark.parametrize(("name", "text"), BAD)
def test_bad_value_names_variable_value_and_what_is_allowed(name: str, text: str) -> None:
    row = next(v for v in VARIABLES if v.name == f"UCCL_EP_{name}")
    with pytest.raises(InvalidArgument) as caught:
        Settings.from_environment({row.name: text})
    allowed = one_of(row.allowed.split(" | "))
    assert str(caught.value).startswith(f"{row.name} must be {allowed}; got {text!r}. {row.help}")
    assert caught.value.allowed == allowed
    assert caught.value.argument == row.name


@pytest.mark.parametrize("name", [v.name for v in VARIABLES])
def test_blank_means_default(name: str) -> None:
    assert Settings.from_environment({name: "  "}) == Settings()


def test_unknown_name_warns_and_names_the_nearest() -> None:
    with pytest.warns(UserWarning, match="UCCL_EP_TRANSPROT: ignored. Nearest: UCCL_EP_TRANSPORT$") as caught:
        parsed = Settings.from_environment({"UCCL_EP_TRANSPROT": "tcp", "UCCL_EP_RINGS": "3"})
    assert len(caught) == 1
    assert parsed == Settings(rings=3)
    with pytest.warns(UserWarning, match="Nearest: UCCL_EP_"):  # however far
        Settings.from_environment({"UCCL_EP_" + "Q" * 40: "1"})


def test_names_of_others_are_not_ours() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Settings.from_environment({"UCCL_RINGS": "x", "uccl_ep_rings": "x", "PATH": "x"}) == Settings()


def test_settings_are_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    settings.cache_clear()
    try:
        monkeypatch.setenv("UCCL_EP_RINGS", "nine")
        with pytest.raises(InvalidArgument):
            settings()
        monkeypatch.setenv("UCCL_EP_RINGS", "9")
        first = settings()
        monkeypatch.setenv("UCCL_EP_RINGS", "3")
        assert settings() is first and first.rings == 9
    finally:
        settings.cache_clear()


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().rings = 3  # type: ignore[misc]


def test_description_has_every_row_in_full() -> None:
    rows = describe()
    assert [row.name for row in rows] == [v.name for v in VARIABLES]
    assert all(all(dataclasses.astuple(row)) for row in rows)
    by_name = {row.name: row for row in rows}
    assert by_name["UCCL_EP_EXPLAIN"].default == "0"
    assert by_name["UCCL_EP_PIN_CPUS"].default == "empty"
    assert by_name["UCCL_EP_TIMEOUT_S"].default == "100.0"
    assert by_name["UCCL_EP_TRANSPORT"].allowed == "auto | loopback | shared_memory | tcp | verbs | efa | libfabric"


@pytest.mark.parametrize("row", describe(), ids=lambda row: row.name)
def test_shown_default_reads_back_as_the_default(row: object) -> None:
    shown, name = row.default, row.name  # type: ignore[attr-defined]
    assert Settings.from_environment({name: "" if shown == "empty" else shown}) == Settings()


@given(st.sampled_from(VARIABLES), st.text(max_size=8))
def test_any_text_is_a_value_of_the_right_type_or_refused(variable: object, text: str) -> None:
    try:
        parsed = Settings.from_environment({variable.name: text})  # type: ignore[attr-defined]
    except InvalidArgument as error:
        assert variable.name in str(error)  # type: ignore[attr-defined]
    else:
        field = variable.field  # type: ignore[attr-defined]
        assert type(getattr(parsed, field)) is type(getattr(Settings(), field))
