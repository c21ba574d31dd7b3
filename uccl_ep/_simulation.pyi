"""
Simulated runs of uccl_ep's engine, rings and kernels, of many ranks on one thread.
"""



class Stop:
    """Ends `simulate` between two seeds once it is set."""

    def __init__(self) -> None: ...

    def set(self) -> None: ...

class Totals:
    """What a number of simulated runs added up to."""

    @property
    def seeds(self) -> int: ...

    @property
    def low_latency(self) -> int: ...

    @property
    def lethal(self) -> int: ...

    @property
    def absences(self) -> int: ...

    @property
    def rows(self) -> int: ...

    @property
    def writes(self) -> int: ...

    @property
    def steps(self) -> int: ...

    @property
    def virtual_ns(self) -> int: ...

    @property
    def overtakes(self) -> int: ...

    @property
    def deepest(self) -> int: ...

    @property
    def parked(self) -> int: ...

    @property
    def faults(self) -> int: ...

    @property
    def finished(self) -> int: ...

    @property
    def failed(self) -> int: ...

    @property
    def dead(self) -> int: ...

    @property
    def most_ranks(self) -> int: ...

    @property
    def trace(self) -> int: ...

    @property
    def failures(self) -> list[tuple[int, str]]: ...

def simulate(first: int, count: int, profile: str, num_ranks: int, num_nodes: int, stop: Stop) -> Totals:
    """
    Runs seeds [first, first + count) on this thread, without Python's lock.
    """

def explain(seed: int, profile: str, num_ranks: int, num_nodes: int) -> str:
    """A failing seed, shortened, in lines; '' when it does not fail."""

def describe(seed: int, profile: str, num_ranks: int, num_nodes: int) -> str:
    """What a seed stands for, in one line."""

def answers(seed: int, round: int) -> dict[str, object]:
    """
    Inputs and expected outputs of one round of every rank, as the oracle has them.
    """
