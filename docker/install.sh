#!/usr/bin/env bash
# Makes a bare Debian or Ubuntu machine able to build or run uccl-ep: installs, through apt, only what is missing. Images,
# CI and people run this same file. cmake, ninja and every Python package come from PyPI (pyproject.toml).
#   install.sh [build]     what building takes: compiler, make, git, Python with its headers
#   install.sh run         what an installed wheel takes: Python
#   install.sh verbs       run, and user-space RDMA: InfiniBand, RoCE, EFA
#   install.sh efa         verbs, and libfabric
#   install.sh hosts       two hosts on one machine, for `make tour` and tests: ip, tc, unshare, nsenter
#   install.sh pictures    what `make tour` takes pictures of the documentation with: Chromium, about 110 MB to fetch
#   install.sh roots      what a clean Debian root is made with, for tests/docker: debootstrap
#   install.sh images      roots, and what builds an image of one without a registry, for tests/docker: buildah
#   install.sh proofs      build, and what `make prove` takes: spin, clang with libFuzzer, ip and tc
#   install.sh bench       build, and what `make bench` counts instructions with: valgrind
#   install.sh arm         build, and what `make test-arm` and `make demo-arm` take: a compiler for 64-bit ARM and QEMU
#   install.sh cache       build, and ccache, so that CI compiles what several builds share once
#   install.sh rdma        build, and what `make test-rdma` takes: QEMU, busybox, user-space RDMA with pyverbs, perftest
#   install.sh package [EXTRA]   uccl-ep itself with that extra (cuda13, cuda12, rocm) into a new environment PREFIX
# PYTHON (python3), PREFIX (/opt/uccl-ep), PIP_ARGS (arguments to pip) and WHEEL (a wheel to install instead of the
# source tree that this file lies in) come from the environment.
set -euo pipefail
python="${PYTHON:-python3}"
missing=()

# need COMMAND PACKAGE: the package is wanted where the command is not there.
need() { PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null || missing+=("$2"); }

# packages NAME...: those that are not installed are wanted.
packages() {
  local name
  for name in "$@"; do
    dpkg-query -W -f '${Status}' "$name" 2>/dev/null | grep -q 'ok installed' || missing+=("$name")
  done
}

for_run() {
  need "$python" python3
  "$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
}

for_build() {
  command -v g++ >/dev/null || command -v "${CXX:-g++}" >/dev/null || missing+=(g++)
  need make make
  need git git
  for_run
  # Python.h: distributions ship it apart from the interpreter.
  "$python" -c 'import os, sys, sysconfig as s; sys.exit(not os.path.exists(s.get_path("include") + "/Python.h"))' \
    2>/dev/null || missing+=(python3-dev)
}

for_verbs() {
  for_run
  packages libibverbs1 ibverbs-providers rdma-core
}

for_roots() {
  need debootstrap debootstrap
  need unshare util-linux
}

for_proofs() {
  for_build
  need spin spin
  need ip iproute2
  need tc iproute2
  if ! compgen -c clang++ >/dev/null || ! compgen -G '/usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-*' >/dev/null
  then
    version=$(apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]*\)$/\1/p' | head -n 1)
    missing+=(clang "libclang-rt-${version:-14}-dev")
  fi
}

for_bench() {
  for_build
  need valgrind valgrind
}

for_arm() {
  for_build
  packages g++-aarch64-linux-gnu libc6-dev-arm64-cross libstdc++-12-dev-arm64-cross qemu-user-static
}

for_cache() {
  for_build
  need ccache ccache
}

for_rdma() {
  local pair
  for_build
  for pair in qemu-system-x86_64:qemu-system-x86 busybox:busybox-static depmod:kmod ip:iproute2 tc:iproute2 \
    rdma:iproute2 zstd:zstd ibv_devinfo:ibverbs-utils ib_write_bw:perftest fi_info:libfabric-bin; do
    need "${pair%%:*}" "${pair#*:}"
  done
  # Without the recommended packages QEMU has neither its BIOS nor what its devices boot from.
  packages seabios ipxe-qemu rdma-core ibverbs-providers libibverbs1 libibverbs-dev \
    libfabric1 libfabric-dev python3-pyverbs
  # An image without package lists knows no kernel to download.
  [ -n "$(apt-cache pkgnames linux-image-amd64 2>/dev/null)" ] || [ "$(id -u)" -ne 0 ] || apt-get update -qq
}

# package EXTRA: an environment of its own, so that nothing of the distribution's Python is replaced.
package() {
  local tree prefix="${PREFIX:-/opt/uccl-ep}" extra="${1:+[$1]}"
  tree=$(cd "$(dirname "$0")/.." && pwd)
  "$python" -m venv "$prefix"
  # shellcheck disable=SC2086 - PIP_ARGS is words
  "$prefix/bin/pip" install -q --disable-pip-version-check --no-cache-dir -c "$tree/constraints.txt" ${PIP_ARGS:-} \
    "uccl-ep${extra} @ file://$(realpath "${WHEEL:-$tree}")"
  "$prefix/bin/uccl-ep" version
}

case "${1:-build}" in
  build) for_build ;;
  run) for_run ;;
  verbs) for_verbs ;;
  efa)
    for_verbs
    packages libfabric1
    ;;
  hosts)
    need ip iproute2
    need tc iproute2
    need unshare util-linux
    ;;
  pictures)
    command -v chromium >/dev/null || command -v google-chrome >/dev/null || missing+=(chromium)
    ;;
  roots) for_roots ;;
  images)
    for_roots
    need buildah buildah
    ;;
  proofs) for_proofs ;;
  bench) for_bench ;;
  arm) for_arm ;;
  cache) for_cache ;;
  rdma) for_rdma ;;
  package)
    package "${2:-}"
    exit
    ;;
  *)
    echo "install.sh $1: allowed are build, run, verbs, efa, hosts, pictures, roots, images, proofs, bench, arm, cache, rdma, package; see the top of this file" >&2
    exit 2
    ;;
esac

if [ "${#missing[@]}" -eq 0 ]; then
  echo "nothing to install: everything is there"
  exit 0
fi
echo "installing: ${missing[*]}"
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "not root, or no apt-get: install these yourself: ${missing[*]}" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}"
