#!/usr/bin/env bash
# Builds UCCL-EP from this checkout on a machine with one GPU and no network, measures it and checks it; under 10 minutes.
# Everything it makes lies in a scratch folder; what comes out is one JSON file and its table. See bench/README.md.
set -uo pipefail

usage() {
  cat <<'TEXT'
bench/device_check.sh [--wheels DIR] [--out DIR] [--quick] [--device auto|cpu|cuda|hip] [--only STEP,...] [--installed]

  --wheels DIR   Python packages that the machine lacks, as wheel files (see below)
  --out DIR      where the result goes (default: build/bench/results)
  --quick        small shapes, few rounds: a look, not a measurement
  --device D     auto takes the GPU if there is one; cpu tries the whole harness without
  --only STEPS   machine, kernels, ring, copies, low_latency, throughput, launches, tests, sanitize
  --resume FILE  the file that an earlier call has written: goes on where that one ended
  --installed    build nothing: use the uccl_ep that PYTHON imports
  PYTHON=...     the interpreter that has torch and CuPy (default: python3)
  BUILD_LIMIT_S, WHOLE_S  seconds that the build (default: 300; 16 cores need far less) and everything (540) may take

The machine has to have: Python 3.10 or newer with its headers, torch for its GPU, CuPy with NVRTC (or hiprtc), numpy,
pip, a C++20 compiler, cmake 3.25 or newer, ninja. Useful: nvidia-smi, compute-sanitizer.

Wheels to carry, beside those, into one folder (the ones that its `python3 -m pip list` shows can stay away):
  to build    scikit-build-core nanobind pathspec packaging
  to run      msgpack psutil
  to test     pytest pytest-timeout pluggy iniconfig pygments
  for the uccl-ep command, which the check does not need: typer click rich shellingham markdown-it-py mdurl matplotlib
On a machine that pip works on, for Python 3.12 on x86-64:
  python3 -m pip download --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 -d DIR \
    scikit-build-core nanobind pathspec packaging msgpack psutil pytest pytest-timeout pluggy iniconfig pygments
A uccl_ep-*.whl in DIR is what is installed should the build fail (no Python headers, say); the result says so.

The file is written after every step: a call that is ended has left what it did. Exit status: 0 when every step that could
run did well.
TEXT
}

root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
wheels='' out="$root/build/bench/results" device=auto build=1
passed=()
while [ $# -gt 0 ]; do
  case $1 in
    --wheels) wheels=$(cd "$2" && pwd) || exit 2; shift 2 ;;
    --out) mkdir -p "$2" && out=$(cd "$2" && pwd) || exit 2; shift 2 ;;
    --device) device=$2; shift 2 ;;
    --only) passed+=(--only "$2"); shift 2 ;;
    --resume) passed+=(--resume "$(realpath "$2")") || exit 2; shift 2 ;;
    --quick) passed+=(--quick); shift ;;
    --installed) build=0; shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "unknown argument $1" >&2; usage >&2; exit 2 ;;
  esac
done

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
site="$scratch/site" log="$scratch/log" steps="$scratch/steps.json"
mkdir -p "$site" "$out"
echo '[]' >"$steps"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PYTHONUNBUFFERED=1
export UCCL_EP_CACHE_DIR="$scratch/cache"

# step NAME LIMIT_S COMMAND...: runs it, and adds how it ended to the list of steps.
step() {
  local name=$1 limit=$2 begin=$SECONDS status=0
  shift 2
  echo "==> $name (at most $limit s)"
  timeout --kill-after=5 "$limit" "$@" >"$log" 2>&1 || status=$?
  echo "    $([ "$status" -eq 0 ] && echo ok || echo "failed, status $status"), $((SECONDS - begin)) s"
  "$python" - "$steps" "$name" "$limit" "$status" "$((SECONDS - begin))" "$log" <<'PY'
import json, sys
path, name, limit, status, seconds, log = sys.argv[1:]
steps = json.load(open(path))
how = {"0": "ok", "124": "out_of_time", "137": "out_of_time"}.get(status, "failed")
why = "" if how == "ok" else open(log, errors="replace").read()[-3000:]
steps.append({"name": name, "status": how, "why": why, "seconds": float(seconds), "limit_s": float(limit),
              "result": {}, "targets": []})
json.dump(steps, open(path, "w"))
PY
  return "$status"
}

install_wheels() {
  local chosen=()
  for wheel in "$wheels"/*.whl; do
    case $wheel in */uccl_ep-*) ;; *) chosen+=("$wheel") ;; esac
  done
  "$python" -m pip install --no-index --no-deps --no-compile --no-cache-dir --target "$site" "${chosen[@]}"
}

install_from_sources() {
  "$python" -m pip install --no-index --no-deps --no-build-isolation --no-compile --no-cache-dir --target "$site" \
    -C build-dir="$scratch/build" -C cmake.define.nanobind_DIR="$("$python" -m nanobind --cmake_dir)" "$root"
}

install_prebuilt() {
  "$python" -m pip install --no-index --no-deps --no-compile --no-cache-dir --target "$site" "$wheels"/uccl_ep-*.whl
}
export -f install_wheels install_from_sources install_prebuilt
export python site scratch wheels root

if [ "$build" -eq 1 ]; then
  export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
  if [ -n "$wheels" ]; then step wheels 60 bash -c install_wheels; fi
  if ! step build "${BUILD_LIMIT_S:-300}" bash -c install_from_sources; then
    tail -n 20 "$log"
    if ! compgen -G "$wheels/uccl_ep-*.whl" >/dev/null || ! step prebuilt 60 bash -c install_prebuilt; then
      # Nothing of ours can be imported: the file is written without us.
      "$python" - "$steps" "$out" "$device" <<'PY'
import json, sys, time
steps, out, device = json.load(open(sys.argv[1])), sys.argv[2], sys.argv[3]
now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
result = {"schema": 1, "benchmark": "device_check", "started": now, "device": device, "quick": False,
          "seconds": sum(s["seconds"] for s in steps), "steps": steps, "targets": []}
path = f"{out}/device_check-not-built-{now.replace('-', '').replace(':', '')}.json"
json.dump(result, open(path, "w"), indent=1)
print(f"nothing was checked, since nothing could be built: {path}")
PY
      exit 1
    fi
  fi
fi

# The sources of the tests and benchmarks without those of the package: what is imported is what was installed.
run="$scratch/run"
mkdir -p "$run"
cp -r "$root/bench" "$root/tests" "$root/kernels" "$root/proxy" "$root/pyproject.toml" "$run"
if [ "$build" -eq 0 ]; then
  run="$root"
fi
cd "$run" || exit 1
"$python" -m bench.device.check --device "$device" --out "$out" --build "$steps" --whole-s "${WHOLE_S:-540}" "${passed[@]}"
