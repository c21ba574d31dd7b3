"""Booting, with a stand-in for QEMU: exit codes come back, what does not start is tried once more, deadlines hold."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.rdma.__main__ import end
from tests.rdma.guest import machine
from tests.rdma.guest.image import Image
from tests.rdma.guest.machine import NO_CODE, Machine

IMAGE = Image(Path("vmlinux"), Path("first.cpio.gz"), Path("modules") / "6.1.0")
GOOD = ': >"$share/started"; . "$share/environment.sh"; bash "$share/command.sh"; echo $? >"$share/code"'


@pytest.fixture
def qemu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that finds the share in its arguments as QEMU would, counts its starts, and runs what a test writes."""
    program = tmp_path / "qemu"
    monkeypatch.setattr(machine, "tool", lambda name: str(program))
    monkeypatch.setenv("STARTS", str(tmp_path / "starts"))
    return program


def play(qemu: Path, script: str) -> None:
    find = 'share=$(echo "$*" | sed "s/.*id=share,path=\\([^,]*\\),.*/\\1/"); echo x >>"$STARTS"\n'
    qemu.write_text(f"#!/bin/bash\n{find}{script}\n")
    qemu.chmod(0o755)


def starts(qemu: Path) -> int:
    return len((qemu.parent / "starts").read_text().splitlines())


def run(qemu: Path, command: list[str], limit_s: float = 20.0) -> tuple[machine.Outcome, list[str]]:
    said: list[str] = []
    outcome = machine.run(
        Machine(IMAGE), command, qemu.parent / "share", {"WORD": "two words; $HOME"}, limit_s, said.append
    )
    return outcome, said


def test_rdma_machine_exit_code_and_console_come_back(qemu: Path) -> None:
    play(qemu, "echo Booting; " + GOOD)
    outcome, said = run(qemu, ["bash", "-c", 'echo "$WORD" >"$(dirname "$0")/share/word"; exit 7', str(qemu)])
    assert (outcome.code, outcome.started, outcome.tries, outcome.why) == (7, True, 1, "")
    assert outcome.cpu_seconds > 0.0
    assert "Booting" in said and (qemu.parent / "share/word").read_text() == "two words; $HOME\n"


def test_rdma_machine_that_does_not_start_is_tried_once_more(qemu: Path) -> None:
    play(qemu, f'[ $(wc -l <"$STARTS") = 1 ] && {{ echo panic; exit 3; }}; {GOOD}')
    outcome, said = run(qemu, ["true"])
    assert (outcome.code, outcome.tries) == (0, 2) and starts(qemu) == 2
    assert any("once more" in line and "panic" in line for line in said)


def test_rdma_machine_gives_up_after_the_second_try(qemu: Path) -> None:
    play(qemu, "echo no firmware; exit 1")
    outcome, _ = run(qemu, ["true"])
    assert (outcome.code, outcome.started, outcome.tries) == (NO_CODE, False, 2) and starts(qemu) == 2
    assert "no firmware" in outcome.why


def test_rdma_machine_a_command_never_gets_a_second_chance(qemu: Path) -> None:
    play(qemu, ': >"$share/started"; exit 1')  # it crashed while the command ran
    outcome, _ = run(qemu, ["true"])
    assert (outcome.code, outcome.started, outcome.tries) == (NO_CODE, True, 1) and starts(qemu) == 1


def test_rdma_machine_deadline_ends_it_and_its_children(qemu: Path) -> None:
    play(qemu, ': >"$share/started"; sleep 60 & echo $! >"$share/child"; wait')
    begin = time.monotonic()
    outcome, _ = run(qemu, ["true"], limit_s=1.0)
    assert outcome.code == NO_CODE and "limit of 1 s" in outcome.why and time.monotonic() - begin < 15.0
    child = int((qemu.parent / "share/child").read_text())
    until = time.monotonic() + 5.0
    while os.path.exists(f"/proc/{child}") and time.monotonic() < until:
        if "Z" in Path(f"/proc/{child}/stat").read_text().split(")")[1].split()[0]:
            return  # ended; nobody has collected it
        time.sleep(0.01)
    assert not os.path.exists(f"/proc/{child}")


def test_rdma_machine_a_time_limit_around_it_leaves_no_guest(qemu: Path) -> None:
    play(qemu, 'echo $$ >"$share/child"; sleep 60')
    before = signal.signal(signal.SIGTERM, end)
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    try:
        with pytest.raises(SystemExit, match="143"):
            run(qemu, ["true"])
    finally:
        timer.join()
        signal.signal(signal.SIGTERM, before)
    assert not os.path.exists(f"/proc/{(qemu.parent / 'share/child').read_text().strip()}")


def test_rdma_machine_an_old_exit_code_is_not_believed(qemu: Path) -> None:
    (qemu.parent / "share").mkdir()
    (qemu.parent / "share/code").write_text("0\n")
    play(qemu, ': >"$share/started"')
    assert run(qemu, ["true"])[0].code == NO_CODE


def test_rdma_machine_command_line(qemu: Path) -> None:
    emulated = machine.qemu_command(Machine(IMAGE, memory_mb=512, cpus=1), Path("/a/share"))
    assert "-icount" in emulated and "512" in emulated and "vmlinux" in emulated
    several = machine.qemu_command(Machine(IMAGE, cpus=2), Path("/a/share"))
    assert "tcg,thread=multi" in several and "-icount" not in several  # it counts for one processor only
    assert any("path=/,security_model=none,readonly=on" in word for word in emulated)  # this machine stays as it is
    assert any("job=/a/share/job.sh" in word for word in emulated)
    probe = machine.qemu_command(Machine(IMAGE, accelerated=True), None)
    assert "-icount" not in probe
    assert "kvm" in probe and any("job=none" in word for word in probe) and "-fsdev" not in probe


def test_rdma_machine_kvm_counts_only_when_a_guest_boots(qemu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.os, "access", lambda path, mode: True)
    play(qemu, "echo qemu: failed to set MSR; exit 1")
    assert "failed to set MSR" in machine.really_accelerates(IMAGE)
    play(qemu, "echo BIOS only")
    assert "does not come up" in machine.really_accelerates(IMAGE)
    play(qemu, "echo uccl-ep-guest: booted")
    assert machine.really_accelerates(IMAGE) == ""
    monkeypatch.setattr(machine.os, "access", lambda path, mode: False)
    assert "/dev/kvm" in machine.really_accelerates(IMAGE)
