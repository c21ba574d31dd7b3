"""What a process holds of the system, to see that a Buffer's end gives it all back."""

from __future__ import annotations

import gc
import os
import time

import psutil

from tests.faults.inventory import of_another_program


class Holdings:
    """What this process holds of the system: descriptors, threads, children, mappings of ours, files in /dev/shm."""

    def __init__(self) -> None:
        gc.collect()
        me = psutil.Process()
        self.fds = me.num_fds()
        self.threads = me.num_threads()
        self.children = {child.pid for child in me.children(recursive=True)}
        with open("/proc/self/maps", encoding="utf-8") as maps:
            self.mappings = sum("uccl-ep-" in line for line in maps)
        self.shm = {name for name in os.listdir("/dev/shm") if not of_another_program(name, {me.pid})}

    def assert_gone_back(self) -> None:
        """Nothing more is held than when this was made; threads may take a moment to be gone."""
        deadline = time.monotonic() + 10
        while (now := Holdings()).__dict__ != self.__dict__ and time.monotonic() < deadline:
            time.sleep(0.02)
        assert now.__dict__ == self.__dict__
