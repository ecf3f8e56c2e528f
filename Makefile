PYTHON = .venv/bin/python
# Tests start hundreds of Pythons: whatever the environment wants, none is to compile everything anew.
COMPILED = PYTHONDONTWRITEBYTECODE=
# What is installed is readable by all, whatever the mask of the user who installs it: the server has a user of its own.
SHARED = umask 022 &&
PIP = $(SHARED) $(PYTHON) -m pip install --quiet --disable-pip-version-check --no-build-isolation

WEB_NODE = web/node_modules/.package-lock.json

.DEFAULT_GOAL := help
.PHONY: help setup serve chat web web-check test test-system test-all trials pytest java interop fuzz generators histories lint format man dist proto demo bench pin clean

help:  ## Print this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile

setup: .venv/runtime  ## Create .venv and install what the server needs
	@if scripts/java --required; then ($(SHARED) $(PYTHON) -P -m spark.delta_jars) || echo "the archive will not work without them"; fi

serve: setup  ## Start the server on embedded defaults: ./conclave.db, port 8080
	@.venv/bin/conclave serve

chat: setup  ## Talk in the terminal, at the server on this machine; more with OPTIONS="SERVER --user NAME"
	@.venv/bin/conclave chat $(OPTIONS)

web: $(WEB_NODE)  ## Build the chat for browsers into conclave/web/static; needs Node
	@cd web && node build.mjs

web-check: $(WEB_NODE)  ## Check the types of the chat for browsers
	@cd web && npx tsc --noEmit

$(WEB_NODE): web/package-lock.json
	@cd web && npm ci --silent

test: setup .venv/development java  ## Lint, types and tests but the system tests: 5 minutes on two cores
	@$(MAKE) --no-print-directory --jobs=2 --keep-going lint pytest CHOSEN='-m "not system"'

test-system: setup .venv/development java  ## Test processes, kills, Spark's histories, browsers, deployment
	@$(MAKE) --no-print-directory pytest CHOSEN='-m system'

test-all: setup .venv/development java  ## Lint, types and all tests, the exhaustive ones whole: run it nightly
	@CONCLAVE_SAMPLE=all $(MAKE) --no-print-directory --jobs=2 --keep-going lint pytest

pytest:
	@$(COMPILED) $(PYTHON) -m pytest -n 3 --dist worksteal --durations=15 --durations-min=1 $(CHOSEN)

trials: setup .venv/development java  ## Build the image and run it, talk from a fresh clone, live a week: downloads, half an hour
	@$(COMPILED) CONCLAVE_IMAGE_BASE=made CONCLAVE_TRIALS=1 CONCLAVE_SAMPLE=all $(PYTHON) -m pytest -rs --durations=0 --durations-min=1 $(TRIALS)

TRIALS = tests/deploy/test_container.py tests/deploy/test_dist.py tests/deploy/test_readme.py tests/processes/test_week.py

fuzz: setup .venv/development  ## Send 5,000 requests made of the OpenAPI document, others each time
	@CONCLAVE_FUZZ=5000 $(PYTHON) -m pytest tests/api/test_schemathesis.py

interop: setup .venv/development  ## Talk in one group with mls-rs, which existing clients use; needs cargo and libssl-dev
	@cd tests/interop_peer && CARGO_TARGET_DIR=$(PEER) cargo build --release --quiet
	@$(COMPILED) CONCLAVE_MLS_PEER=$(PEER)/release/interop-peer $(PYTHON) -m pytest -n 3 --dist worksteal $(WITH_PEER)

PEER = $(CURDIR)/.interop_peer
WITH_PEER = tests/client/encryption/test_existing.py tests/client/mls/test_churn.py::test_existing_clients_and_this_one_stay_in_one_group \
	tests/web/test_churn.py tests/web/test_three_kinds.py tests/web/test_scene.py

answers: setup .venv/development  ## Send 200,000 random requests to the client port and to aiohttp alone, others each time
	@CONCLAVE_ANSWERS=$${CONCLAVE_ANSWERS:-$$(date +%s):6000} $(PYTHON) -m pytest -n 2 -p no:logging tests/server/client_port/test_same_answers.py -k whatever

generators: .venv/development .generators/ready  ## Have clients made by two generators talk to a server
	@CONCLAVE_GENERATORS=$(CURDIR)/.generators/bin $(PYTHON) -m pytest tests/processes/test_generators.py

histories: setup .venv/development java  ## Play 40 random histories of each kind, others each time
	@CONCLAVE_HISTORIES=$$(date +%s):40 $(PYTHON) -m pytest -n 3 --dist worksteal -k random tests/spark/archive/test_agrees.py tests/spark/test_governed_histories.py

lint: .venv/development  ## ruff and mypy
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m mypy

format: .venv/development  ## Lay the code out
	@$(PYTHON) -m ruff check --fix .
	@$(PYTHON) -m ruff format .

man: setup  ## Renew docs/man from the help of the commands
	@$(PYTHON) scripts/man

dist: .venv/runtime  ## Build wheel, sources and, by podman or docker, an image of the last commit
	@$(PYTHON) scripts/dist --image

proto: .venv/development  ## Generate conclave/wire/conclave_pb2.py and .pyi from proto/conclave.proto
	@$(PYTHON) -m grpc_tools.protoc -Iconclave/wire=proto --python_out=. --pyi_out=. conclave/wire/conclave.proto

demo: setup  ## Three users, groups of each policy, a cleanup: what was kept, what went, and why
	@scripts/java --required
	@$(PYTHON) -P -m conclave.cli.demo

bench: setup .venv/development  ## Measure what docs/performance.md says
	@$(PYTHON) -m bench

pin: .venv/development  ## Renew the pinned requirements from pyproject.toml
	$(PYTHON) -m uv pip compile $(PIN) --extra server --extra client -o requirements/runtime.txt pyproject.toml
	$(PYTHON) -m uv pip compile $(PIN) --extra server --extra client --extra dev -o requirements/dev.txt pyproject.toml
	$(PYTHON) -m uv pip compile $(PIN) -o requirements/build.txt requirements/build.in
	$(PYTHON) -m uv pip compile $(PIN) -o requirements/generators.txt requirements/generators.in

PIN = --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-find-links

clean:  ## Remove .venv and the caches
	rm -rf .venv dist .generators .interop_peer .java_cache .mypy_cache .pytest_cache .ruff_cache .hypothesis tests/interop_peer/Cargo.lock
	find conclave spark tests bench scripts -name __pycache__ -prune -exec rm -rf {} +

# Build tools first and pinned too: pip would otherwise fetch whichever are newest to build pyspark.
.venv/runtime: requirements/build.txt requirements/runtime.txt pyproject.toml
	@python=$$(scripts/python) && echo "setting up .venv (a few minutes the first time)" && $(SHARED) $$python -m venv .venv
	@$(PIP) --require-hashes -r requirements/build.txt
	@$(PIP) --require-hashes -r requirements/runtime.txt
	@$(PIP) --no-deps -e .
	@$(SHARED) $(PYTHON) -m compileall -q conclave spark
	@$(SHARED) touch $@

# Tests start many Java processes, and the file halves what each start takes.
java: .venv/development
	@scripts/java --required
	@$(SHARED) $(PYTHON) -P -m spark.delta_jars
	@[ .java_cache/classes.jsa -nt .venv/runtime ] || $(PYTHON) -m tests.support.java_classes || true

.venv/development: .venv/runtime requirements/dev.txt
	@$(PIP) --require-hashes -r requirements/dev.txt
	@$(SHARED) touch $@

# Apart from .venv: they bring some forty packages, which nothing else needs.
.generators/ready: requirements/generators.txt | .venv/development
	@$(PYTHON) -m venv --clear .generators
	@.generators/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/generators.txt
	@touch $@
