"""The hosts of cut-link plans: what a harmed cable still carries, and that nothing is left of them."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from tests.faults import network
from tests.faults.network import Network

ANSWER_S = 20.0  # of a packet that comes
SILENCE_S = 0.3  # after which one that was sent before has come, or does not


@pytest.fixture
def hosts() -> Iterator[Network]:
    why = network.missing()
    if why:
        pytest.skip(f"NOT RUN: network namespaces cannot be made: {why}")
    with Network(3) as made:
        yield made
    assert not made.left()


def socket_on(hosts: Network, host: int) -> socket.socket:
    """A datagram socket that lives in a host's namespace, whoever uses it."""
    made: list[socket.socket] = []

    def make() -> None:
        network.enter(hosts.name(host))
        made.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        made[0].bind((hosts.address(host), 0))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return made[0]


def carried(sender: socket.socket, receiver: socket.socket, limit_s: float) -> bool:
    """Whether a datagram comes through."""
    sender.sendto(b"x", receiver.getsockname())
    receiver.settimeout(limit_s)
    try:
        return receiver.recv(1) == b"x"
    except TimeoutError:
        return False


@pytest.mark.parametrize(("harm", "out", "into"), [("cut", False, False), ("mute", False, True), ("deaf", True, False)])
def test_network_harm_is_in_one_direction_and_to_one_host(hosts: Network, harm: str, out: bool, into: bool) -> None:
    ends = [socket_on(hosts, host) for host in range(3)]
    try:
        for a in ends:
            for b in ends:
                assert a is b or carried(a, b, ANSWER_S)
        hosts.harm(harm, 1)
        for other in (0, 2):
            assert carried(ends[1], ends[other], ANSWER_S if out else SILENCE_S) == out
            assert carried(ends[other], ends[1], ANSWER_S if into else SILENCE_S) == into
        assert carried(ends[0], ends[2], ANSWER_S) and carried(ends[2], ends[0], ANSWER_S)
    finally:
        for end in ends:
            end.close()


def test_network_of_a_killed_test_is_cleared_away(hosts: Network) -> None:
    program = "import os\nfrom tests.faults.network import Network\nNetwork(2).__enter__()\nos.kill(os.getpid(), 9)"
    dead = subprocess.Popen([sys.executable, "-c", program])
    assert dead.wait(60) == -9
    left = [path.name for path in network._NAMES.glob(f"{network._PREFIX}-{dead.pid}-*")]
    assert len(left) == 3
    network._forget_the_dead()
    assert not [name for name in left if (network._NAMES / name).exists()]
    assert (network._NAMES / hosts.name(0)).exists(), "the network of a living test stays"
