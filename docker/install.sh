#!/usr/bin/env bash
# Makes a bare Debian or Ubuntu machine able to build uccl-ep: installs, through apt, only what is missing. Images, CI
# and people run this same file. cmake, ninja and every Python package come from PyPI (pyproject.toml).
set -euo pipefail

missing=()
command -v g++ >/dev/null || command -v "${CXX:-g++}" >/dev/null || missing+=(g++)
command -v make >/dev/null || missing+=(make)
command -v git >/dev/null || missing+=(git)
python="${PYTHON:-python3}"
if ! command -v "$python" >/dev/null; then
  missing+=(python3 python3-venv python3-dev)
else
  "$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
  # Python.h: distributions ship it apart from the interpreter.
  "$python" -c 'import os, sys, sysconfig as s; sys.exit(not os.path.exists(s.get_path("include") + "/Python.h"))' ||
    missing+=(python3-dev)
fi

if [ "${#missing[@]}" -eq 0 ]; then
  echo "nothing to install: compiler, make, git and Python are there"
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
