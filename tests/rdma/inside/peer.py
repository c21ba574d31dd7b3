"""A rank written a second time, in Python over pyverbs: it exchanges writes and immediates with our transport.

Obeys the commands of native/side.cpp, and two of its own: `forget-memory` (its memory's registration ends, while peers
still believe its key) and `stranger-write` (a write with a key that the peer never gave). Run as a file, by an
interpreter that can import pyverbs; needs nothing else but `wire.py` beside it.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import select
import socket
import sys
import time
from typing import Any

import pyverbs.enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR
from wire import GREETING_BYTES, Address, Group, Nic

BASE = 4096  # of the memory in the rank's flat space
RECEIVES = 512  # posted on each queue pair
DEPTH = 32  # of a queue pair's writes that may be open
ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
IDENTITY = bytes(range(256))
CONNECT_S = 30.0

Answer = dict[str, Any]


def pattern(length: int, seed: int) -> bytes:
    """Byte i is (31 i + 17 (i >> 8) + seed) mod 256, as native/side.cpp has it; it repeats after 64 KiB."""
    line = bytes(i * 31 & 255 for i in range(256))
    turned = (IDENTITY[c:] + IDENTITY[:c] for c in ((17 * block + seed) & 255 for block in range(256)))
    period = b"".join(line.translate(table) for table in turned)
    return (period * (length // len(period) + 1))[:length]


class Memory:
    """Registered memory of this process."""

    def __init__(self, pd: PD, length: int) -> None:
        self.map = mmap.mmap(-1, length)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.region = MR(pd, length, ACCESS, address=self.base)


class Peer:
    """One rank with one NIC and one lane."""

    def __init__(self, options: dict[str, str]) -> None:
        self.rank, self.num_ranks = int(options["rank"]), int(options["ranks"])
        self.queues, self.gid_index = int(options["qps"]), int(options["gid"])
        self.max_in_flight, self.timeout = int(options["in_flight"]), int(options["timeout"])
        self.device = options["device"]
        self.group = Group(int(options["session"]), (options["secret"][0] * 32).encode())
        self.nonce = os.urandom(16)
        self.context = Context(name=self.device)
        self.pd = PD(self.context)
        self.sends, self.receives = CQ(self.context, 4096), CQ(self.context, 8192)
        self.memory = Memory(self.pd, int(options["bytes"]))
        slots = self.num_ranks * self.queues
        self.greetings = Memory(self.pd, max(4096, 2 * slots * GREETING_BYTES))
        self.blank = SGE(self.greetings.base, 0, self.greetings.region.lkey)  # pyverbs wants one in every request
        self.pairs = {
            (r, q): self._make_pair() for r in range(self.num_ranks) if r != self.rank for q in range(self.queues)
        }
        self.of_number = {pair.qp_num: who for who, pair in self.pairs.items()}
        self.peers: dict[int, Address] = {}
        self.arrived: list[tuple[int, int]] = []  # (immediate, rank)
        self.turn = 0

    def _make_pair(self) -> QP:
        cap = QPCap(max_send_wr=DEPTH + 2, max_recv_wr=RECEIVES, max_send_sge=1, max_recv_sge=1)
        return QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.sends, rcq=self.receives, cap=cap, sq_sig_all=1))

    def obey(self, words: list[str]) -> Any:
        """The answer to one command."""
        numbers = [int(w) for w in words[1:] if w.isdecimal()]
        commands: dict[str, Any] = {
            "address": lambda: {"address": self.address().pack().hex()},
            "connect": lambda: self.connect(words[1:]),
            "fill": lambda: self.fill(*numbers),
            "write": lambda: self.write(*numbers),
            "expect": lambda: self.expect(*numbers),
            "check": lambda: self.check(*numbers),
            "forget-memory": self.forget_memory,
            "stranger-write": lambda: self.stranger_write(*numbers),
        }
        return commands[words[0]]()

    def address(self) -> Address:
        port, gid = self.context.query_port(1), self.context.query_gid(1, self.gid_index).gid
        numbers = [
            self.pairs[r, q].qp_num if r != self.rank else 0 for r in range(self.num_ranks) for q in range(self.queues)
        ]
        mtu = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}[port.active_mtu]
        greetings, keys = self.greetings, (self.memory.region.rkey,)
        nic = Nic(self.device, str(gid), mtu, greetings.base, greetings.region.rkey, keys, tuple(numbers))
        spans = ((BASE, len(self.memory.map), self.memory.base),)
        shape = (self.rank, self.num_ranks, 1, self.queues, self.max_in_flight)
        return Address(self.group.fingerprint, self.nonce, *shape, spans, (nic,))

    # ---- connecting --------------------------------------------------------------------------------------------------

    def connect(self, addresses: list[str]) -> Answer:
        begin = time.monotonic()
        self.peers = {r: Address.unpack(bytes.fromhex(a)) for r, a in enumerate(addresses) if a != "-"}
        for (rank, queue), pair in self.pairs.items():
            self._to_ready(rank, queue, pair)
        heard = set()
        for rank, queue in self.pairs:
            if self.rank < rank:
                self._greet(rank, queue)
        while len(heard) < len(self.pairs):
            for number, immediate in self._take(CONNECT_S - (time.monotonic() - begin)):
                who = self.of_number[number]
                if who in heard:
                    self.arrived.append((immediate, who[0]))
                    continue
                self._check_greeting(*who)
                heard.add(who)
                if self.rank > who[0]:
                    self._greet(*who)
        return {"seconds": time.monotonic() - begin}

    def _to_ready(self, rank: int, queue: int, pair: QP) -> None:
        nic = self.peers[rank].nics[0]
        attr = QPAttr(port_num=1)
        attr.dest_qp_num = nic.queue_pairs[self.rank * self.queues + queue]
        attr.path_mtu, attr.timeout, attr.retry_cnt, attr.rnr_retry = e.IBV_MTU_4096, self.timeout, 6, 7
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.min_rnr_timer, attr.qp_access_flags = 12, ACCESS
        theirs = self.peers[rank].nonce
        attr.sq_psn = self.group.first_packet((self.rank, rank, 0, queue), self.nonce, theirs)
        attr.rq_psn = self.group.first_packet((rank, self.rank, 0, queue), theirs, self.nonce)
        route = GlobalRoute(dgid=GID(nic.gid), sgid_index=self.gid_index, hop_limit=64)
        attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
        pair.to_init(attr)
        for _ in range(RECEIVES):
            self._post_receive(pair)
        pair.to_rts(attr)

    def _post_receive(self, pair: QP) -> None:
        pair.post_recv(RecvWR(num_sge=1, sg=[self.blank]))

    def _greet(self, rank: int, queue: int) -> None:
        """Writes our proof into the peer's slot for us."""
        nic, own = self.peers[rank].nics[0], rank * self.queues + queue
        at = (self.num_ranks * self.queues + own) * GREETING_BYTES
        self.greetings.map[at : at + 32] = self.group.proof(
            (self.rank, rank, 0, queue), self.nonce, self.peers[rank].nonce
        )
        sge = SGE(self.greetings.base + at, 32, self.greetings.region.lkey)
        there = nic.greeting_base + (self.rank * self.queues + queue) * GREETING_BYTES
        self._post(self.pairs[rank, queue], sge, queue, nic.greeting_key, there)
        self._complete(1, CONNECT_S)

    def _check_greeting(self, rank: int, queue: int) -> None:
        at = (rank * self.queues + queue) * GREETING_BYTES
        expected = self.group.proof((rank, self.rank, 0, queue), self.peers[rank].nonce, self.nonce)
        if self.greetings.map[at : at + 32] != expected:
            raise ValueError(f"rank {rank} greeted with another secret or session")

    # ---- data --------------------------------------------------------------------------------------------------------

    def _post(self, pair: QP, sge: SGE, immediate: int, key: int, address: int) -> None:
        # pyverbs passes the immediate on as it is: in network order.
        wr = SendWR(
            opcode=e.IBV_WR_RDMA_WRITE_WITH_IMM, num_sge=1, sg=[sge], imm_data=socket.htonl(immediate),
            send_flags=e.IBV_SEND_SIGNALED,
        )  # fmt: skip
        wr.set_wr_rdma(key, address)
        pair.post_send(wr)

    def _complete(self, count: int, limit_s: float) -> list[int]:
        """Statuses of `count` completions."""
        until, statuses = time.monotonic() + limit_s, []
        while len(statuses) < count:
            _, done = self.sends.poll(min(64, count - len(statuses)))
            statuses += [c.status for c in done]
            if not done:
                if time.monotonic() > until:
                    raise TimeoutError(f"{len(statuses)} of {count} writes completed within {limit_s} s")
                os.sched_yield()
        return statuses

    def _take(self, limit_s: float) -> list[tuple[int, int]]:
        """(queue pair number, immediate) of what has arrived; waits until something has."""
        until = time.monotonic() + limit_s
        while True:
            _, done = self.receives.poll(64)
            if done:
                break
            if time.monotonic() > until:
                raise TimeoutError(f"nothing arrived within {limit_s:.0f} s")
            os.sched_yield()
        for c in done:
            if c.status == e.IBV_WC_SUCCESS:
                self._post_receive(self.pairs[self.of_number[c.qp_num]])
        good = [c for c in done if c.status == e.IBV_WC_SUCCESS and c.opcode == e.IBV_WC_RECV_RDMA_WITH_IMM]
        return [(c.qp_num, socket.ntohl(c.imm_data)) for c in good]  # a farewell is a send, and ends nothing here

    @property
    def half(self) -> int:
        return len(self.memory.map) // 2

    def fill(self, seed: int) -> Answer:
        self.memory.map[: self.half] = pattern(self.half, seed)
        return {}

    def write(self, peer: int, count: int, length: int, first: int, limit_s: int) -> Answer:
        (offset, span_bytes, base), nic = self.peers[peer].spans[0], self.peers[peer].nics[0]
        slots, begin, open_writes, statuses = max(1, self.half // max(length, 1)), time.monotonic(), 0, []
        there = base + BASE - offset + span_bytes // 2
        for i in range(count):
            at = i % slots * length
            sge = SGE(self.memory.base + at, length, self.memory.region.lkey)
            self.turn = (self.turn + 1) % self.queues
            self._post(self.pairs[peer, self.turn], sge, first + i, nic.keys[0], there + at)
            open_writes += 1
            if open_writes == DEPTH or i == count - 1:
                statuses += self._complete(open_writes, limit_s)
                open_writes = 0
        bad = [{"code": status} for status in statuses if status != e.IBV_WC_SUCCESS]
        return {
            "posted": count, "completed": count - len(bad), "seconds": time.monotonic() - begin, "events": bad,
        }  # fmt: skip

    def expect(self, count: int, limit_s: int) -> Answer:
        begin = time.monotonic()
        while len(self.arrived) < count:
            left = limit_s - (time.monotonic() - begin)
            self.arrived += [(i, self.of_number[number][0]) for number, i in self._take(left)]
        immediates = [immediate for immediate, _ in self.arrived]
        answer = {
            "arrived": len(immediates), "sum": sum(immediates), "lowest": min(immediates), "highest": max(immediates),
            "from": self.arrived[-1][1], "seconds": time.monotonic() - begin, "events": [],
        }  # fmt: skip
        self.arrived = []
        return answer

    def check(self, length: int, seed: int) -> Answer:
        got, due = self.memory.map[self.half : self.half + length], pattern(length, seed)
        wrong = 0 if got == due else sum(a != b for a, b in zip(got, due, strict=True))
        self.memory.map[self.half :] = b"\xee" * self.half
        return {"wrong": wrong}

    # ---- misbehaviour ------------------------------------------------------------------------------------------------

    def forget_memory(self) -> Answer:
        self.memory.region.close()
        return {}

    def stranger_write(self, peer: int) -> Answer:
        """A write with a key of our own invention; the status that it ends with."""
        span, nic = self.peers[peer].spans[0], self.peers[peer].nics[0]
        sge = SGE(self.memory.base, 64, self.memory.region.lkey)
        self._post(self.pairs[peer, 0], sge, 1, nic.keys[0] ^ 0x5A5A00, span[2] + span[1] // 2)
        return {"status": self._complete(1, CONNECT_S)[0]}


def lines() -> Any:
    """Commands of standard input, as words."""
    pending = b""
    while True:
        while b"\n" in pending:
            line, _, pending = pending.partition(b"\n")
            yield line.decode().split()
        select.select([sys.stdin], [], [])
        more = os.read(sys.stdin.fileno(), 1 << 16)
        if not more:
            return
        pending += more


def main() -> int:
    options = {
        "rank": "1", "ranks": "2", "device": "rxe1", "gid": "1", "qps": "1", "session": "7", "secret": "s",
        "bytes": "4194304", "in_flight": "64", "timeout": "14",
    }  # fmt: skip
    options.update(word.split("=", 1) for word in sys.argv[1:])
    peer = Peer(options)
    for words in lines():
        try:
            answer = peer.obey(words)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
