"""Step: libfabric's verbs provider on the same devices, once our transport over libfabric is in the build."""

from __future__ import annotations

from tests.rdma.inside.context import Context, nodes, transport_exists
from tests.rdma.inside.kernels import MODES, add
from tests.rdma.inside.report import Report


def run(context: Context, report: Report) -> None:
    missing = transport_exists(context, "libfabric")
    if missing:
        report.skipped.append(f"libfabric's verbs provider: {missing}")
        return
    for mode in MODES:
        done = nodes(context, family="libfabric", provider="verbs;ofi_rxm", mode=mode, ranks=2, rounds=3)
        add(report, f"libfabric verbs, {mode.replace('_', ' ')}", done)
