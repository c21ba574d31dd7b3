"""All checks by path, and the examination of a machine: every path asked for gets its findings and its verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from uccl_ep.errors import one_of, refuse
from uccl_ep.tools.doctor import cpu, cuda, efa, gpu, libfabric, rocm, sharing, tcp, verbs
from uccl_ep.tools.doctor.host import Host
from uccl_ep.tools.doctor.record import PATHS, Check, Finding, Verdict, examine, judge, no_device, not_needed

CHECKS: Mapping[str, Sequence[Check]] = {
    "cpu": cpu.CHECKS,
    "host": sharing.CHECKS,
    "tcp": tcp.CHECKS,
    "cuda": cuda.CHECKS,
    "rocm": rocm.CHECKS,
    "verbs": verbs.CHECKS,
    "efa": efa.CHECKS,
    "libfabric": libfabric.CHECKS,
}
UNNEEDED: Mapping[str, Callable[[Host], str]] = {  # the others are of use on every machine
    "cuda": cuda.unneeded,
    "rocm": rocm.unneeded,
    "verbs": verbs.unneeded,
    "efa": efa.unneeded,
    "libfabric": libfabric.unneeded,
}


@dataclass(frozen=True)
class Examination:
    """Everything that was found, path by path in the order of PATHS."""

    verdicts: tuple[Verdict, ...]
    findings: tuple[Finding, ...]

    def state_of(self, path: str) -> str:
        """A path's verdict; empty: it was not examined."""
        return next((verdict.state for verdict in self.verdicts if verdict.path == path), "")


def check_names(option: str, names: Sequence[str]) -> None:
    """Every name is a path. Raises InvalidArgument."""
    for name in names:
        if name not in PATHS:
            refuse(option, name, one_of(PATHS))


def examine_host(host: Host, paths: Sequence[str] = PATHS) -> Examination:
    """Runs the checks of the paths. Never raises for what the machine is.

    Args:
        paths: of PATHS.
    """
    findings: list[Finding] = []
    wanted = [path for path in PATHS if path in paths]
    for path in wanted:
        findings += examine_path(host, path)
    return Examination(tuple(judge(path, findings) for path in wanted), tuple(findings))


def examine_path(host: Host, path: str) -> list[Finding]:
    """The findings of one path; where nobody here needs it, no check of it runs."""
    try:
        reason = UNNEEDED[path](host) if path in UNNEEDED else ""
    except Exception:  # what hides whether it is needed will be named by the checks themselves
        reason = ""
    if reason:
        # Where nobody has chosen to do without, the reason is a device that is not there.
        answer = not_needed(reason) if reason == gpu.ON_CPU else no_device(reason)
        return [examine(Check(path, check.name, lambda _: answer), host) for check in CHECKS[path]]
    return [examine(check, host) for check in CHECKS[path]]
