"""What figures and counters come to, with the command of each vendor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from uccl_ep.tools.check.counters import PortState
from uccl_ep.tools.check.judge import KINDS, judge, of_kind
from uccl_ep.tools.check.measure import SIZES, Measured, Side, Speed
from uccl_ep.tools.doctor.record import MISSING, OK, SLOW, UNKNOWN

PORT = PortState("mlx5_2:1", "eth4", "mlx5_core", "Ethernet", "ACTIVE", 400.0, 9000, {}, {"packet_seq_err": 0})


def speeds(gbps: float = 300.0, trip_us: float = 6.0) -> tuple[Speed, ...]:
    return tuple(Speed(size, 2e6, gbps * 1e9 / 8 if size == 1 << 20 else 2e6 * size, trip_us) for size in SIZES)


def measured(grown: dict[str, int] | None = None, port: PortState = PORT, **changes: Any) -> Measured:
    side = Side("a", (port,), {port.name: grown or {}}, speeds())
    made = Measured("verbs", "a test", 0, 104, (side, replace(side, hostname="b")))
    return replace(made, **changes)


def row(found: Measured, name: str, path: str = "") -> Any:
    return next(f for f in judge(found) if f.name == name and (not path or f.path == path))


def test_judge_a_good_network_has_nothing_to_mend() -> None:
    findings = judge(measured())
    assert {f.state for f in findings} == {OK}, findings
    assert row(measured(), "bandwidth").found.startswith("a writes 300 Gb/s; b writes 300 Gb/s")
    assert row(measured(), "class").found == "traffic class 104 (DSCP 26)"


@pytest.mark.parametrize(
    "driver, counter, name, fix",
    [
        ("mlx5_core", "packet_seq_err", "losses", "mlnx_qos -i eth4 --trust dscp --pfc 0,0,0,1,0,0,0,0"),
        ("bnxt_en", "to_retransmits", "losses", "bnxt_setupcc.sh -d mlx5_2 -i eth4"),
        ("ionic", "tx_rdma_retx_pkts", "losses", "nicctl update qos pfc --priority 3 --no-drop enable"),
        ("mlx5_core", "rx_prio3_discards", "losses", "UCCL_EP_MAX_IN_FLIGHT_BYTES=1MiB"),
        ("mlx5_core", "rx_prio3_pause", "congestion", "enable/3; done"),
        ("mlx5_core", "link_downed", "link", "mlxlink -d mlx5_2 -m -c"),
        ("bnxt_en", "rx_fcs_err_frames", "link", "ethtool -m eth4"),
    ],
)
def test_judge_what_grows_names_the_vendors_command(driver: str, counter: str, name: str, fix: str) -> None:
    found = row(measured({counter: 1234}, replace(PORT, driver=driver)), name)
    assert found.state == SLOW and f"{counter} +1,234" in found.found and fix in found.fix


def test_judge_pauses_with_marks_are_as_they_should_be() -> None:
    assert row(measured({"rx_prio3_pause": 5, "np_cnp_sent": 7}), "congestion").state == OK


def test_judge_ecn_that_is_off() -> None:
    found = row(
        measured(port=replace(PORT, ecn={"roce_np/3": True, "roce_rp/3": False, "roce_rp/0": False})), "congestion"
    )
    assert found.state == SLOW and "off: roce_rp/3" in found.found and "ecn/roce_$s/enable/3" in found.fix


def test_judge_best_effort_is_said() -> None:
    found = row(measured(traffic_class=0), "class")
    assert found.state == SLOW and "UCCL_EP_TRAFFIC_CLASS=104" in found.fix


def test_judge_speed_against_the_port_and_the_other_end() -> None:
    side = measured().sides[0]
    poor = replace(side, hostname="b", speeds=speeds(100.0, 400.0), ports=(replace(PORT, gbps=200.0, mtu=1500),))
    found = measured(sides=(side, poor))
    assert row(found, "bandwidth").state == OK, "half of the slower port's 200"
    assert row(found, "round trip").state == SLOW and "cpupower" in row(found, "round trip").fix
    assert row(found, "both ends").found == "mtu 9000 on a, 1500 on b; gbps 400.0 on a, 200.0 on b"
    slow = replace(side, speeds=speeds(90.0))
    assert row(measured(sides=(slow, side)), "bandwidth").state == SLOW


def test_judge_ports_that_are_down_or_say_nothing() -> None:
    assert row(measured(port=replace(PORT, state="DOWN")), "port").state == MISSING
    assert row(measured(port=replace(PORT, state="")), "port").state == UNKNOWN
    assert row(measured(port=replace(PORT, counters={})), "losses").state == UNKNOWN


def test_judge_tcp_is_not_judged_by_what_nics_do() -> None:
    plain = PortState("eth0", "eth0", "", "Ethernet", "up", 0.0, 1500, {}, {"rx_errors": 9})
    found = measured(port=plain, family="tcp", traffic_class=0)
    assert {f.state for f in judge(found)} == {OK}
    assert not [f for f in judge(found) if f.name in ("class", "congestion")]
    assert row(found, "link").found == "no error while measuring; since it came up: rx_errors +9"


def test_judge_counters_are_matched_as_whole_names() -> None:
    names = {"out_of_sequence": 1, "not_out_of_sequence": 1, "rx_prio3_pause_duration": 4}
    assert of_kind("losses", names) == {"out_of_sequence": 1} and of_kind("pauses", names) == {}
    assert set(KINDS) == {"losses", "discards", "pauses", "marks", "link errors"}
