"""What figures and counters mean, and the command that mends it on each vendor's NIC. (docs: fabric/docs/roce.md)

Names of counters are those of drivers: mlx5, bnxt, ionic, efa, soft-RoCE, and InfiniBand's own of every port.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from uccl_ep.fabric.facts import NIC_FAMILIES
from uccl_ep.tools.check.counters import PortState
from uccl_ep.tools.check.measure import Measured, Side
from uccl_ep.tools.doctor.record import Answer, Finding, missing, ok, short, slow, unknown

_LEAST_SHARE = 0.5  # of the ports' rate, by one thread on one connection
_MOST_TRIP_US = 50.0  # there and back, of a NIC that writes memory: 3 to 10 within a rack, 35 to 60 on EFA
_MOST_LISTED = 6

KINDS: Mapping[str, re.Pattern[str]] = {
    "losses": re.compile(
        r"packet_seq_err|out_of_sequence|out_of_seq_request|local_ack_timeout_err|implied_nak_seq_err|roce_adp_retrans|"
        r"seq_err_naks_rcvd|to_retransmits|req_rx_pkt_seq_err|tx_rdma_ack_timeout|tx_rdma_retx_pkts|retrans_pkts|"
        r"retrans_timeout_events|completer_retry_err|rcvd_seq_err|duplicate_request"
    ),
    "discards": re.compile(r"rx_prio\d_discards|(rx_)?out_of_buffer|rx_discards_phy|port_xmit_discards|rx_pfc_drops?"),
    "pauses": re.compile(r"[rt]x_prio\d_pause|[rt]x_pfc_ena_frames_pri\d|[rt]x_pause_ctrl_phy"),
    "marks": re.compile(
        r"np_ecn_marked_roce_packets|np_cnp_sent|rp_cnp_handled|rx_ecn_marked_pkts|[rt]x_cnp_pkts|rx_rdma_ecn_pkts|"
        r"[rt]x_rdma_cnp_pkts"
    ),
    "link errors": re.compile(
        r"symbol_error|link_error_recovery|link_downed|port_rcv_errors|local_link_integrity_errors|rx_symbol_err_phy|"
        r"link_down_events_phy|rx_crc_errors(_phy)?|rx_fcs_err_frames|rx_errors|tx_errors"
    ),
}
"""What a counter is a sign of, by its whole name."""

_LOSSLESS = {
    "mlx5": "mlnx_qos -i {interface} --trust dscp --pfc 0,0,0,1,0,0,0,0 (as root)",
    "bnxt": "bnxt_setupcc.sh -d {device} -i {interface} -m 3 -r 3 -s 26 -c 7 -p 48 (as root)",
    "ionic": "nicctl update qos pfc --priority 3 --no-drop enable; nicctl show qos",
}
_MARKING = {
    "mlx5": "for s in np rp; do echo 1 > /sys/class/net/{interface}/ecn/roce_$s/enable/3; done (as root)",
    "bnxt": _LOSSLESS["bnxt"],
    "ionic": "nicctl show dcqcn, and AMD's guide for its values",
}
_CABLE = {
    "mlx5": "mlxlink -d {device} -m -c (as root); reseat or replace the cable",
    "": "ethtool -m {interface}; reseat or replace the cable",
}


def judge(measured: Measured) -> list[Finding]:
    """A line for each thing that was looked at, the network's first, then each host's."""
    found = [_row("network", "bandwidth", bandwidth(measured)), _row("network", "round trip", round_trip(measured))]
    found += [_row("network", "immediates", immediates(measured)), _row("network", "both ends", alike(measured))]
    for side in measured.sides:
        for port in side.ports:
            grown = side.grown.get(port.name, {})
            rows = {"port": state(port), "losses": losses(measured, port, grown), "link": link_errors(port, grown)}
            if port.link == "Ethernet" and measured.family in NIC_FAMILIES:
                rows["congestion"] = congestion(port, grown)
                rows["class"] = traffic_class(measured, port)
            found += [_row(f"{side.hostname} {port.name}", name, answer) for name, answer in rows.items()]
    return found


def of_kind(kind: str, grown: Mapping[str, int]) -> dict[str, int]:
    """The counters that are a sign of it."""
    return {name: more for name, more in grown.items() if KINDS[kind].fullmatch(name)}


def bandwidth(measured: Measured) -> Answer:
    """Of large writes, against what the ports could."""
    best = [max(speed.bytes_per_s for speed in side.speeds) * 8 / 1e9 for side in measured.sides]
    shown = "; ".join(
        f"{side.hostname} writes {gbps:.3g} Gb/s" for side, gbps in zip(measured.sides, best, strict=True)
    )
    could = min(side.gbps for side in measured.sides)
    if measured.family not in NIC_FAMILIES or not could:
        return ok(f"{shown}" + ("" if could else "; the ports do not say what they could"))
    needed = f"half of {could:g} Gb/s by one thread on one connection"
    if min(best) < _LEAST_SHARE * could:
        return slow(
            shown, needed, "UCCL_EP_QUEUE_PAIRS=4 uccl-ep check ... (several paths); then losses and pauses below"
        )
    return ok(shown, needed)


def round_trip(measured: Measured) -> Answer:
    """Of 8 bytes there and back."""
    trips = [next(speed.round_trip_us for speed in side.speeds if speed.size == 8) for side in measured.sides]
    shown = " and ".join(f"{us:.1f} us" for us in trips)
    if measured.family in NIC_FAMILIES and max(trips) > _MOST_TRIP_US:
        fix = "cpupower frequency-set -g performance (as root), on both; then a shorter path: traceroute"
        return slow(shown, f"at most {_MOST_TRIP_US:g} us", fix)
    return ok(shown)


def immediates(measured: Measured) -> Answer:
    """Writes of no bytes: what a proxy thread can tell a second. All of them have arrived, or the check had failed."""
    rates = [next(speed.writes_per_s for speed in side.speeds if speed.size == 0) for side in measured.sides]
    return ok(" and ".join(f"{rate / 1e6:.2f} M/s" for rate in rates) + ", each told once")


def alike(measured: Measured) -> Answer:
    """MTU, rate and link layer."""
    first, second = measured.sides
    wrong = []
    for what in ("mtu", "gbps", "link"):
        values = [sorted({str(getattr(port, what)) for port in side.ports}) for side in (first, second)]
        if values[0] != values[1]:
            wrong.append(
                f"{what} {', '.join(values[0])} on {first.hostname}, {', '.join(values[1])} on {second.hostname}"
            )
    if wrong:
        fix = "ip link set dev INTERFACE mtu 9000 (as root), on both, and on every switch; rates: cables and ports"
        return slow("; ".join(wrong), "the same on both", fix)
    return ok("the same MTU, rate and link layer" if first.ports and second.ports else "no port is known")


def state(port: PortState) -> Answer:
    """Whether the port is up."""
    rate = f"{port.gbps:g} Gb/s" if port.gbps else "unknown rate"
    shown = f"{port.state or 'unknown state'}, {rate}, MTU {port.mtu or 'unknown'}" + (
        f", {port.driver}" if port.driver else ""
    )
    if port.state in ("ACTIVE", "up", "unknown"):  # "unknown": loopback and tunnels have no carrier
        return ok(shown)
    if not port.state:
        return unknown(shown, "a port that says its state", "mount /sys into the container (read-only is enough)")
    return missing(shown, "ACTIVE", f"ip link set dev {port.interface or 'INTERFACE'} up (as root); look at the cable")


def losses(measured: Measured, port: PortState, grown: Mapping[str, int]) -> Answer:
    """Packets that were sent again or thrown away while we measured."""
    lost, dropped = of_kind("losses", grown), of_kind("discards", grown)
    if not lost and not dropped:
        seen = any(KINDS["losses"].fullmatch(name) for name in port.counters)
        if seen or measured.family not in NIC_FAMILIES:
            return ok("none while measuring")
        return unknown(
            f"{port.driver or 'this driver'} counts none that are known here",
            "counters of what is sent again",
            "rdma statistic show; ethtool -S",
        )
    shown = _listed({**lost, **dropped})
    if dropped and not lost:
        fix = "UCCL_EP_MAX_IN_FLIGHT_BYTES=1MiB, or lower: this host cannot take in what comes"
        return slow(shown, "no packet thrown away", fix)
    return slow(shown, "no packet sent again: a lossless class on NICs and switches", _command(_LOSSLESS, port))


def link_errors(port: PortState, grown: Mapping[str, int]) -> Answer:
    """Bits that were wrong on the cable."""
    wrong = of_kind("link errors", grown)
    if wrong:
        return slow(_listed(wrong), "a link without errors", _command(_CABLE, port))
    ever = of_kind("link errors", port.counters)
    return ok("no error while measuring" + (f"; since it came up: {_listed(ever)}" if any(ever.values()) else ""))


def congestion(port: PortState, grown: Mapping[str, int]) -> Answer:
    """PFC, ECN and DCQCN: who was held back, and how."""
    pauses, marks = of_kind("pauses", grown), of_kind("marks", grown)
    off = sorted(name for name, on in port.ecn.items() if not on and name.endswith("/3"))
    shown = _listed({**pauses, **marks}) if pauses or marks else "no pause and no mark while measuring"
    if off:
        needed = "ECN answered (roce_np) and obeyed (roce_rp) for priority 3"
        return slow(f"{shown}; off: {', '.join(off)}", needed, _command(_MARKING, port))
    if pauses and not marks:
        needed = "marks before pauses: PFC alone also stops flows that are not to blame"
        return slow(
            shown, needed, f"ECN on the switches' queue of that class, at a lower threshold; {_command(_MARKING, port)}"
        )
    return ok(shown)


def traffic_class(measured: Measured, port: PortState) -> Answer:
    """Best effort, or a class that switches may protect."""
    if measured.traffic_class:
        return ok(f"traffic class {measured.traffic_class} (DSCP {measured.traffic_class // 4})")
    fix = "UCCL_EP_TRAFFIC_CLASS=104 where DSCP 26 is the lossless class; " + _command(_LOSSLESS, port)
    return slow(
        "traffic class 0: best effort, which switches drop first", "the class that NICs and switches protect", fix
    )


def _command(by_driver: Mapping[str, str], port: PortState) -> str:
    """The vendor's, for this port; several where the driver is not known."""
    device = port.name.partition(":")[0]
    names = [name for name in by_driver if name and port.driver.startswith(name)]
    if not names and "" in by_driver:
        names = [""]
    texts = [by_driver[name] for name in names or [name for name in by_driver if name]]
    return " | ".join(
        dict.fromkeys(text.format(device=device, interface=port.interface or "INTERFACE") for text in texts)
    )


def _listed(counters: Mapping[str, int]) -> str:
    most = sorted(counters.items(), key=lambda item: -item[1])
    shown = ", ".join(f"{name} +{value:,}" for name, value in most[:_MOST_LISTED] if value)
    return shown + (f" and {len(most) - _MOST_LISTED} more" if len(most) > _MOST_LISTED else "")


def _row(path: str, name: str, answer: Answer) -> Finding:
    return Finding(path, name, answer.state, short(answer.found), answer.needed, answer.fix)


def sides_in_words(sides: Sequence[Side]) -> str:
    """`a (mlx5_0:1, mlx5_1:1) and b (mlx5_0:1)`."""
    return " and ".join(f"{s.hostname} ({', '.join(port.name for port in s.ports) or 'no port'})" for s in sides)
