# Targets for a clone: `make demo` shows a run, `make test` runs all tests.
# Needs python3 (3.11 or newer) with pip, make and git; installs nothing outside this folder.

SHELL := /bin/bash
UV := $(shell command -v uv 2>/dev/null || echo .tools/uv/bin/uv)
BIN := .venv/bin
BENCH_BIN := .tools/bench/bin
# Hides packages of the caller's Python, and its wish for no bytecode files: without them, each of the thousands of
# programs that tests start compiles what it imports.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV PYTHONDONTWRITEBYTECODE

.PHONY: demo test clients lint check docs golden bench soak mutants lock clean setup
.DEFAULT_GOAL := test

demo: setup
	$(BIN)/agentos demo
	@echo "In this clone the command agentos is $(BIN)/agentos." >&2

# More processes than processors: a test spends half of its time on waiting for programs, leases and servers.
test: setup
	$(BIN)/python -m pytest -q -n 5 --dist worksteal

# Runs real agents (Claude Code, Codex, Gemini CLI), unmodified, behind the gateway. Needs Node and npm; versions are
# locked in tests/clients.
clients: setup .tools/clients/.ready
	@cd .tools/clients/node_modules/.bin && for agent in claude codex gemini; do \
	  echo "$$agent $$(./$$agent --version 2>/dev/null)" || exit 1; done
	AGENTOS_CLIENTS=$(CURDIR)/.tools/clients/node_modules/.bin $(BIN)/python -m pytest -q -n 6 --dist worksteal tests/clients

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint
	$(BIN)/python -m tests.acceptance.dependency_audit $(UV) requirements.lock

# Regenerates the parts of docs/ that are written from the code.
docs: setup
	$(BIN)/python -m tests.acceptance.cli_reference docs/cli.md
	$(BIN)/python -m tests.acceptance.events_reference docs/events.md
	$(BIN)/python -m tests.acceptance.errors_reference docs/errors.md
	$(BIN)/python -m tests.acceptance.state_diagrams docs/design.md
	$(BIN)/python -m tests.acceptance.display_picture docs/display.svg

# Records the expected outputs of commands again; `make golden CASES="plan export"` only those cases.
CASES ?=
golden: setup
	$(BIN)/python -m tests.golden $(CASES)

# Measures speed as ratios to named peers in the same run, and writes docs/benchmarks.md; `make bench NAMES="items
# stores"` measures only those. Peers are installed in a separate environment.
NAMES ?=
bench: .tools/bench/.ready .tools/.peers
	$(BENCH_BIN)/python -m benchmarks --write docs/benchmarks.md $(NAMES)

# Runs long random tests: histories for MINUTES minutes, a gateway under load and faults for twice as long, then chaos
# and a thousand kills (about five minutes more).
MINUTES ?= 5
soak: setup
	AGENTOS_SOAK_MINUTES=$(MINUTES) $(BIN)/python -m pytest -q -s tests/soak

# Plants bugs one by one in a copy of the source: a named test must detect each.
mutants: setup
	$(BIN)/python -m tests.mutants

setup: .venv/.ready

.venv/.ready: requirements.lock pyproject.toml | $(UV)
	$(UV) venv --quiet --allow-existing --python python3 .venv
	$(UV) pip sync --quiet --python $(BIN)/python requirements.lock
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	touch $@

.tools/bench/.ready: benchmarks/requirements.lock pyproject.toml | $(UV)
	$(UV) venv --quiet --allow-existing --python python3 .tools/bench
	$(UV) pip sync --quiet --python $(BENCH_BIN)/python benchmarks/requirements.lock
	$(UV) pip install --quiet --python $(BENCH_BIN)/python --no-deps --no-build-isolation --editable .
	touch $@

# Peers of the gateway. One that cannot be installed is not compared.
.tools/.peers: | $(UV)
	$(UV) venv --quiet --allow-existing --python python3 .tools/litellm
	-$(UV) pip install --quiet --python .tools/litellm/bin/python 'litellm[proxy]==1.106.2'
	-npm install --prefix .tools/teamclaude --no-save --no-audit --no-fund --ignore-scripts @karpeleslab/teamclaude@1.1.13
	touch $@

.tools/clients/.ready: tests/clients/package.json tests/clients/package-lock.json tests/clients/.npmrc
	mkdir -p .tools/clients
	cp $^ .tools/clients/
	cd .tools/clients && npm ci --loglevel=error
	touch $@

.tools/uv/bin/uv:
	python3 -m pip install --quiet --disable-pip-version-check --target .tools/uv uv

lock: | $(UV)
	$(UV) pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url --no-annotate --upgrade \
	  --extra all --group dev pyproject.toml -o requirements.lock
	$(UV) pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url --no-annotate --upgrade \
	  --extra all --group dev --group bench pyproject.toml -o benchmarks/requirements.lock

clean:
	rm -rf .venv .tools .mypy_cache .pytest_cache .ruff_cache .hypothesis
