#!/bin/bash
# Slurm with containers: two hosts of eight ranks. One of these makes the image, on a machine with Docker:
#
#   enroot import --output uccl-ep.sqsh dockerd://uccl-ep:cuda      # for pyxis, the plugin of srun
#   apptainer build uccl-ep.sif docker-daemon:uccl-ep:cuda
#
#   sbatch slurm_containers.sh pyxis uccl-ep.sqsh
#   sbatch slurm_containers.sh apptainer uccl-ep.sif
#
# Neither container has a pid namespace of its own, so the ranks of a host are one node. Neither is privileged; both show
# the host's /dev unless your site restricts that. RDMA needs locked memory: see `ulimit -l` where you call sbatch.
#SBATCH --job-name=experts
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=4
set -eu
program=(python -m uccl_ep.examples.launch.slurm) # your program
export UCCL_EP_EXPLAIN=1

case "${1:-}" in
    pyxis) exec srun --container-image="$(realpath "$2")" "${program[@]}" ;;
    apptainer) exec srun apptainer exec --nv "$(realpath "$2")" "${program[@]}" ;; # --rocm for AMD GPUs
    *)
        echo "usage: sbatch $0 pyxis IMAGE.sqsh | apptainer IMAGE.sif" >&2
        exit 2
        ;;
esac
