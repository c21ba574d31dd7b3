"""Other libraries' variables: their syntax, who wins, what is said aloud, and whose interface an address is of."""

from __future__ import annotations

import warnings

import pytest

from uccl_ep.settings import VARIABLES, Settings
from uccl_ep.system.site_settings import NOT_READ, READ, address_by_names


def parsed(**environment: str) -> Settings:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return Settings.from_environment(environment)


@pytest.mark.parametrize(
    "text, reading",
    [
        ("mlx5", "mlx5*"),
        ("mlx5_1:1,mlx5_2", "mlx5_1*:1,mlx5_2*"),
        ("=mlx5_1, mlx5_2:2,", "mlx5_1,mlx5_2:2"),
        ("^mlx5_3,mlx5_4", "^mlx5_3*,^mlx5_4*"),
        ("^=mlx5_3:1,mlx5_4", "^mlx5_3:1,^mlx5_4"),
    ],
)
def test_site_settings_read_the_lists_of_nccl(text: str, reading: str) -> None:
    settings = parsed(NCCL_IB_HCA=text)
    assert settings.nics == reading and settings.said_by("nics") == "NCCL_IB_HCA"
    assert settings.site[0].words == f"NCCL_IB_HCA={text}"


def test_site_settings_are_defaults_under_ours() -> None:
    others = {"NCCL_IB_TC": "0x6a", "NCCL_IB_SL": "5", "NCCL_IB_TIMEOUT": "22", "NCCL_IB_RETRY_CNT": "3"}
    settings = parsed(**others, UCCL_IB_SL="3", UCCL_EP_IB_TIMEOUT="14")
    assert (settings.traffic_class, settings.service_level, settings.ib_timeout, settings.ib_retry_cnt) == (
        106,
        3,
        14,
        3,
    )
    assert [value.variable for value in settings.site] == ["NCCL_IB_TC", "UCCL_IB_SL", "NCCL_IB_RETRY_CNT"]
    assert settings.said_by("ib_timeout") == "UCCL_EP_IB_TIMEOUT" and settings.from_site("ib_timeout") is None
    nvshmem = parsed(NVSHMEM_IB_TRAFFIC_CLASS="130", NVSHMEM_IB_GID_INDEX="3", NVSHMEM_IB_SL="2", NCCL_IB_TC="-1")
    assert (nvshmem.traffic_class, nvshmem.gid_index, nvshmem.service_level) == (130, 3, 2), "-1 is not set"


def test_site_settings_keep_names_of_interfaces_as_they_are() -> None:
    settings = parsed(NCCL_SOCKET_IFNAME="^docker,lo")
    assert settings.interface == "" and settings.site[0].reading == "^docker,lo"
    assert parsed(NCCL_SOCKET_IFNAME="eth0", UCCL_EP_INTERFACE="10.0.0.1").site == ()


def test_site_settings_nvshmem_lists_hold_where_nvshmem_reads_them() -> None:
    assert parsed(NVSHMEM_HCA_LIST="mlx5_0:1,mlx5_1:1", NVSHMEM_ENABLE_NIC_PE_MAPPING="1").nics == "mlx5_0:1,mlx5_1:1"
    with pytest.warns(
        UserWarning, match="NVSHMEM_HCA_LIST=mlx5_0:1 is ignored.*without NVSHMEM_ENABLE_NIC_PE_MAPPING=1"
    ):
        assert Settings.from_environment({"NVSHMEM_HCA_LIST": "mlx5_0:1"}).nics == ""


@pytest.mark.parametrize(
    "name, text, says",
    [
        (
            "NCCL_IB_TC",
            "300",
            "NCCL_IB_TC=300 is ignored: UCCL_EP_TRAFFIC_CLASS takes its place here, which allows 0 to 255",
        ),
        ("NCCL_IB_SL", "high", "NCCL_IB_SL=high is ignored: UCCL_EP_SERVICE_LEVEL .* allows a whole number"),
        ("NCCL_IB_TIMEOUT", "0", "UCCL_EP_IB_TIMEOUT takes its place here, which allows 1 to 31"),
        ("NCCL_IB_HCA", "mlx5_0:x", "NCCL_IB_HCA=mlx5_0:x is ignored: UCCL_EP_NICS"),
        (
            "UCCL_IB_MAX_INFLIGHT_NORMAL",
            "1",
            "is not read: counts for a NIC .* UCCL_EP_MAX_IN_FLIGHT counts for each peer",
        ),
        ("NCCL_IB_ADDR_FAMILY", "AF_INET6", "NCCL_IB_ADDR_FAMILY=AF_INET6 is not read: UCCL_EP_GID_INDEX"),
        ("NCCL_IB_DISABLE", "1", "UCCL_EP_TRANSPORT=tcp"),
    ],
)
def test_site_settings_that_cannot_be_honoured_are_said_aloud(name: str, text: str, says: str) -> None:
    with pytest.warns(UserWarning, match=says) as caught:
        assert Settings.from_environment({name: text}) == Settings()
    assert len(caught) == 1


def test_site_settings_say_nothing_where_ours_has_decided() -> None:
    for name, honoured, _, field in NOT_READ:
        for text in honoured:
            assert parsed(**{name: text}) == Settings()
        if field:
            row = next(v for v in VARIABLES if v.field == field)
            parsed(**{name: "7", row.name: str(row.default) or "mlx5_0"})
    assert {field for field, _, _ in READ} < {v.field for v in VARIABLES}


ADDRESSES = {
    "lo": ["127.0.0.1/8"],
    "eth0": ["fe80::5/64", "fd00::7/64", "10.0.0.5/24"],
    "eth1": ["10.1.0.5/24"],
    "docker0": ["172.17.0.1/16"],
}


@pytest.mark.parametrize(
    "wanted, address",
    [
        ("eth1", "10.1.0.5"),
        ("eth", "10.0.0.5"),
        ("=eth", ""),
        ("=eth1,eth0", "10.0.0.5"),
        ("^eth0", "10.1.0.5"),
        ("^=eth0,docker0", "10.1.0.5"),
        ("^docker,lo", "10.0.0.5"),
        ("lo", "127.0.0.1"),
        ("ib0", ""),
        ("eth1:0", "10.1.0.5"),
    ],
)
def test_site_settings_find_the_address_of_an_interface(wanted: str, address: str) -> None:
    assert address_by_names(wanted, ADDRESSES, "192.0.2.9") == address


def test_site_settings_keep_the_default_route_where_it_may_be() -> None:
    assert address_by_names("eth", ADDRESSES, "10.1.0.5") == "10.1.0.5"
    assert address_by_names("^docker", ADDRESSES, "10.1.0.5") == "10.1.0.5"
