"""What checks look at: roots, PCI, refused settings, libraries, limits; from trees and tables, never guessed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.uccl_ep.fabric import machines
from tests.uccl_ep.tools.doctor.hosts import absent, host, live
from uccl_ep.tools.doctor.host import AMD, NVIDIA, Host


def test_host_gpus_by_vendor(tmp_path: Path) -> None:
    amd = host(tmp_path / "a", machines.mi300x_thor2())
    assert len(amd.gpus_of(AMD)) == 8 and amd.gpus_of(NVIDIA) == []
    nvidia = host(tmp_path / "b", machines.p5())
    assert len(nvidia.gpus_of(NVIDIA)) == 8 and nvidia.gpus_of(AMD) == []
    assert {f.vendor for f in nvidia.pci} == {NVIDIA, 0x1D0F, 0x1000}


def test_host_without_a_tree(tmp_path: Path) -> None:
    bare = Host(sys=str(tmp_path / "none"), proc=str(tmp_path / "none"))
    assert bare.pci == () and bare.machine.nics == () and bare.text_or(f"{bare.proc}/x", "-") == "-"
    with pytest.raises(FileNotFoundError):
        bare.text(f"{bare.proc}/x")


def test_host_files_that_cannot_be_read_are_said(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        host(tmp_path).text_or(str(tmp_path / "folder"))


def test_host_settings_and_what_is_wrong_with_them(tmp_path: Path) -> None:
    good = host(tmp_path / "a", environment={"UCCL_EP_RINGS": "3", "UCCL_EP_RNGS": "4"})
    assert good.settings.rings == 3 and good.settings_problem == ""
    assert "UCCL_EP_RNGS" in good.settings_warnings[0] and "UCCL_EP_RINGS" in good.settings_warnings[0]
    bad = host(tmp_path / "b", environment={"UCCL_EP_RINGS": "many"})
    assert bad.settings.rings == 2 and "UCCL_EP_RINGS" in bad.settings_problem


def test_host_recorded_trees_ask_no_driver(tmp_path: Path) -> None:
    asked: list[str] = []

    def probe(kind: str) -> dict[str, object]:
        asked.append(kind)
        return {"devices": []}

    tree = host(tmp_path / "a", machines.p5(), probe=probe)
    assert tree.recorded and "error" in tree.cuda and asked == []
    here = live(tmp_path / "b", machines.p5(), probe=probe)
    assert here.cuda == {"devices": []} == here.hip and asked == ["cuda", "hip"]
    assert here.cuda is here.cuda and asked == ["cuda", "hip"]  # once


def test_host_libraries(tmp_path: Path) -> None:
    maps = "7f00-7f01 r-xp 00000000 08:01 12 /usr/lib/libibverbs.so.1.14.44.0\n7f02-7f03 rw-p 00000000 00:00 0\n"
    made = host(tmp_path, proc={"self/maps": maps})
    assert made.loaded_from("libibverbs.so.1") == "/usr/lib/libibverbs.so.1.14.44.0"
    assert made.loaded_from("libefa.so.1") == "libefa.so.1"
    assert made.can_load("libibverbs.so.1")
    without = host(tmp_path / "b", load=absent)
    assert not without.can_load("libefa.so.1") and "libefa.so.1: cannot open" in without.why_not("libefa.so.1")


@pytest.mark.parametrize("bits, exempt", [("0000000000004000", True), ("00000000a80425fb", False), ("", False)])
def test_host_capability_to_lock_memory(tmp_path: Path, bits: str, exempt: bool) -> None:
    status = f"Name:\tpython\nCapEff:\t{bits}\n" if bits else "Name:\tpython\n"
    assert host(tmp_path, proc={"self/status": status}).locks_any_memory() is exempt


def test_host_facts_of_a_gpu(tmp_path: Path) -> None:
    made = host(tmp_path, machines.dgx_h100())
    assert made.facts("0000:1b:00.0").where == "GPU 0000:1b:00.0"
    assert made.facts("0000:1b:00.0").families == ("verbs",)
    assert host(tmp_path / "b", machines.dgx_h100(), load=absent).facts().families == ()
