"""A virtual machine whose root is this machine's, read-only below a layer in memory: runs one command with soft-RoCE.

The guest sees the same files at the same paths, so this checkout and this Python run inside unchanged. What it writes
is gone at its end, except in a shared folder. It has no network but its own.
"""

from __future__ import annotations

import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.rdma.guest.image import HERE, Image
from tests.rdma.guest.packages import tool

NO_CODE = 125  # the guest ended without an exit code: it crashed, or was ended at its deadline
_PROBE_S = 20.0
_MOST_SAID = 60  # characters of QEMU's last line that are repeated
_SCRIPTS = ("job.sh", "devices.sh")
# Emulation whose clock counts instructions (2 ns each) while the guest computes, and goes with the host's while it
# waits: a busy host then makes a run longer, and neither its deadlines shorter nor its rates lower. One processor only.
_COUNTED = ("-accel", "tcg,thread=single", "-cpu", "max", "-icount", "shift=1")
# Emulation on several threads, by the host's clock; the plain processor that KVM offers.
_EMULATED = ("-accel", "tcg,thread=multi", "-cpu", "max")
_ACCELERATED = ("-accel", "kvm", "-cpu", "host")


@dataclass(frozen=True)
class Machine:
    """What the guest is given.

    Attributes:
        accelerated: by KVM; see `really_accelerates`.
        memory_mb: of which what the guest writes takes its share.
        cpus: more than the host has gain nothing. With one that is emulated, the guest's clock counts instructions.
    """

    image: Image
    accelerated: bool = False
    memory_mb: int = 6144
    cpus: int = 1

    @property
    def counts_instructions(self) -> bool:
        """Whether the guest's clock is its processor's work, whatever else the host does."""
        return self.cpus == 1 and not self.accelerated


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        code: the command's exit code, or NO_CODE.
        started: the guest came as far as its own shell. tries: 2 when the first did not.
        why: in words, when there is no code. cpu_seconds: of this host's processors.
    """

    code: int
    started: bool
    seconds: float
    tries: int = 1
    why: str = ""
    cpu_seconds: float = 0.0


def run(
    machine: Machine,
    command: Sequence[str],
    share: Path,
    environment: Mapping[str, str],
    limit_s: float,
    say: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Runs `command` in the guest, in the current folder; `share` is the folder that it may write.

    The run is repeated once when the machine ends before the guest's shell is reached, which an emulated processor
    under load does now and then; never later, since a command that failed must not get a second chance.

    Args:
        environment: all of the command's environment besides PATH and what the guest adds.
        limit_s: seconds until the machine is ended.
        say: called with each line of the guest's console.
    """
    begin = time.monotonic()
    outcome = _once(machine, command, share, environment, limit_s, say)
    if not outcome.started and outcome.code == NO_CODE:
        left = limit_s - (time.monotonic() - begin)
        say(f"the guest did not start ({outcome.why}); once more")
        again = _once(machine, command, share, environment, max(left, limit_s / 2), say)
        outcome = replace(
            again, seconds=time.monotonic() - begin, tries=2, cpu_seconds=outcome.cpu_seconds + again.cpu_seconds
        )
    return outcome


def _once(
    machine: Machine,
    command: Sequence[str],
    share: Path,
    environment: Mapping[str, str],
    limit_s: float,
    say: Callable[[str], None],
) -> Outcome:
    share.mkdir(parents=True, exist_ok=True)
    for name in ("code", "started"):
        (share / name).unlink(missing_ok=True)
    for name in _SCRIPTS:
        shutil.copy(HERE / name, share / name)
        (share / name).chmod(0o755)
    values = {"PATH": _path(), "LANG": "C.UTF-8", "HOME": "/tmp", **environment}
    values |= {"MODULES": str(machine.image.modules), "FOLDER": os.getcwd()}
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in values.items()]
    (share / "environment.sh").write_text("".join(lines))
    (share / "command.sh").write_text(f"exec {shlex.join(command)}\n")
    begin, cpu_begin = time.monotonic(), _cpu_of_children()
    ended = _boot(qemu_command(machine, share), limit_s, say)
    seconds, cpu = time.monotonic() - begin, _cpu_of_children() - cpu_begin
    started = (share / "started").exists()
    try:
        return Outcome(int((share / "code").read_text()), started, seconds, cpu_seconds=cpu)
    except (FileNotFoundError, ValueError):
        why = ended or f"no exit code came back after {seconds:.0f} s"
        return Outcome(NO_CODE, started, seconds, why=why, cpu_seconds=cpu)


def _cpu_of_children() -> float:
    """Processor seconds of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _path() -> str:
    """This Python's folder first, and the administrator's programs."""
    own = os.path.dirname(sys.executable)
    return os.pathsep.join([own, "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"])


def qemu_command(machine: Machine, share: Path | None) -> list[str]:
    """The command line of QEMU; without a share, a machine that only boots."""
    image = machine.image
    job = "none" if share is None else f"{share.absolute()}/job.sh"
    # tsc=reliable: an emulated clock that is found unstable is patched out while other processors run, and some
    # kernels have crashed over it. panic=-1 and -no-reboot: a crash ends the machine at once.
    line = f"console=ttyS0 quiet mitigations=off tsc=reliable nowatchdog panic=-1 job={job}"
    processor = _ACCELERATED if machine.accelerated else _COUNTED if machine.counts_instructions else _EMULATED
    command = [tool("qemu-system-x86_64"), "-M", "pc", *processor]
    command += ["-smp", str(machine.cpus), "-m", str(machine.memory_mb), "-nodefaults", "-no-user-config"]
    command += ["-nographic", "-serial", "stdio", "-no-reboot", "-device", "virtio-rng-pci"]
    command += ["-kernel", str(image.kernel), "-initrd", str(image.first), "-append", line]
    if share is not None:
        folders = (("hostroot", "/", ",readonly=on,multidevs=remap"), ("share", str(share.absolute()), ""))
        for tag, path, options in folders:
            command += ["-fsdev", f"local,id={tag},path={path},security_model=none{options}"]
            command += ["-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
    return command


def _boot(command: list[str], limit_s: float, say: Callable[[str], None]) -> str:
    """Runs QEMU and passes on its console; why it was ended or failed, empty when it ended by itself."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    assert process.stdout is not None
    over = threading.Event()

    def end() -> None:
        over.set()
        os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    last = ""
    try:
        for line in process.stdout:
            last = line.decode(errors="replace").rstrip()
            say(last)
        code = process.wait()
    except BaseException:  # an interrupted test leaves no machine behind
        end()
        process.wait()
        raise
    finally:
        timer.cancel()
        timer.join()
        process.stdout.close()
    if over.is_set():
        return f"ended after its limit of {limit_s:.0f} s"
    return f"QEMU ended with {code}: {last[-_MOST_SAID:]}" if code != 0 else ""


def really_accelerates(image: Image) -> str:
    """Why KVM is not used; empty: a guest boots with it. Its device may exist and still run no ordinary kernel."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "no /dev/kvm that may be used"
    lines: list[str] = []
    why = _boot(qemu_command(Machine(image, True, 512, 1), None), _PROBE_S, lines.append)
    if any("uccl-ep-guest: booted" in line for line in lines):
        return ""
    return why or "a guest under KVM does not come up"
