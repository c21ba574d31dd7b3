#!/usr/bin/env bash
# What a release carries beside the wheel that docker/wheel.sh has put into a folder: the source distribution, a bill of
# materials (CycloneDX: what pip installs with the wheel here, with versions and hashes), and SHA256SUMS of all of them.
#   release.sh [FOLDER]     default: dist. PYTHON and PIP_ARGS as in the Makefile.
set -euo pipefail
folder=$(realpath "${1:-dist}")
cd "$(dirname "$0")/.."
bin=$PWD/build/release-tools/bin
draft=$(mktemp -d)
trap 'rm -rf "$draft"' EXIT

[ -x "$bin/python" ] || "${PYTHON:-python3}" -m venv build/release-tools
# shellcheck disable=SC2086 - PIP_ARGS is words
install() { "$bin/pip" install -q --disable-pip-version-check -c constraints.txt ${PIP_ARGS:-} "$@"; }
install scikit-build-core cyclonedx-bom
"$bin/python" -c 'import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])' "$folder"

# pip resolves as for an installation, and says where each file would come from and what its hash is.
install --dry-run --ignore-installed --report "$draft/report.json" "$folder"/uccl_ep-*.whl
"$bin/python" - "$draft/report.json" >"$draft/requirements.txt" <<'END'
import json
import sys

for item in json.load(open(sys.argv[1], encoding="utf-8"))["install"]:
    name, version = item["metadata"]["name"], item["metadata"]["version"]
    hashes = item["download_info"].get("archive_info", {}).get("hashes", {})
    if name != "uccl-ep":  # which is what the bill is of
        print(f"{name}=={version}", *(f"--hash={kind}:{value}" for kind, value in hashes.items()))
END
"$bin/cyclonedx-py" requirements --pyproject pyproject.toml --mc-type library --output-reproducible \
  -o "$folder/uccl-ep.cdx.json" "$draft/requirements.txt"
cd "$folder"
sha256sum -- *.whl *.tar.gz uccl-ep.cdx.json | tee SHA256SUMS
