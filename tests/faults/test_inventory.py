"""What a process holds, and that more of anything is seen."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading

import pytest

from tests.faults import inventory
from tests.faults.inventory import of_another_program
from uccl_ep import _native


def test_inventory_sees_each_kind_of_leak() -> None:
    before = inventory.take()
    assert inventory.take().since(before) == {}
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    descriptor = os.open("/dev/null", os.O_RDONLY)
    segment = _native.Segment.create("uccl-ep-0-data", 4096)
    with socket.socket() as listener:
        more = inventory.take().since(before)
        assert listener.fileno() >= 0
    assert more["descriptor socket"] == 1 and more["descriptor /dev/null"] == 1 and more["descriptor pipe"] == 1
    assert more["segments"] == 1 and more["children"] == 1
    assert any(name.startswith("thread ") for name in more)
    assert any("memfd:uccl-ep-0-data" in name for name in more)

    end.set()
    thread.join()
    assert child.stdin is not None
    child.stdin.close()
    child.kill()
    child.wait()
    os.close(descriptor)
    del segment
    assert inventory.take().since(before) == {}


@pytest.mark.parametrize(
    "name, other", [("7:0:1", True), ("8:0:1", False), ("x:0", False), ("7", False), ("a7", False)]
)
def test_inventory_of_another_program_is_what_libfabric_named_by_its_pid(name: str, other: bool) -> None:
    assert of_another_program(name, {8, 9}) is other
