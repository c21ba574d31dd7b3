"""What Buffer.stats() returns: counters of kernels and proxy, by peer."""

from __future__ import annotations

from typing import Any

from uccl_ep._native import PeerStat
from uccl_ep.session.session import Session


def collect_stats(session: Session) -> dict[str, Any]:
    """{"rank", "peers": one dict a rank, "proxy": sums over its workers, "queue_pairs": one dict each,
    "low_latency_combine"}.

    A peer's dict has rank, host, node_local, via ("load/store" on the node, else the transport's family or "absent"),
    rows_sent, bytes_sent, rows_received, bytes_received, wait_ns (time kernels waited for it), and what the proxy
    counted towards it: writes (of any kind), write_bytes, arrivals, stalls.

    A queue pair's dict has lane (proxy thread), peer, nic (index into the rank's), number (as `rdma resource show qp`
    prints it), writes, write_bytes. There are none in families without queue pairs, nor towards ranks of this node, nor
    when the proxy is a process of its own, which is not asked since it may be what hangs.

    low_latency_combine is {"form": "direct" or "node", "reason"} of low-latency combines, None before the first
    low-latency call.

    A dispatch sends a row once per node. It counts as sent to the rank that takes it in there for its node, which on
    this rank's own node is this rank; received rows count by the rank they are of. Rows that a combine reads where they
    are, because this rank sums them too, count as sent to it, with no bytes.
    """
    workers, proxied = session.regions.read_counters()
    node = session.topology.node_of[session.rank]
    peers = []
    for rank, row in enumerate(session.peer_stats.tolist()):
        local = session.topology.node_of[rank] == node
        peers.append(
            {
                "rank": rank,
                "host": session.hostnames[rank],
                "node_local": local,
                "via": "load/store" if local else "absent" if rank in session.absent else session.family,
                **{stat.name.lower(): row[stat] for stat in PeerStat},
                **{name: proxied[rank][name] for name in ("writes", "write_bytes", "arrivals", "stalls")},
            }
        )
    totals = {name: sum(w[name] for w in workers) for name in workers[0]}
    totals["deepest_reorder"] = max(w["deepest_reorder"] for w in workers)
    form = session.combine_form
    return {
        "rank": session.rank,
        "peers": peers,
        "proxy": totals,
        "queue_pairs": session.queue_pairs(),
        "low_latency_combine": None if form is None else {"form": form.name, "reason": form.reason},
    }
