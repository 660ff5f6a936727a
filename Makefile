# The only entry point: `make help` lists the targets.
.DEFAULT_GOAL := help
SHELL := bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export RAY_USAGE_STATS_ENABLED := 0
export MLFLOW_DISABLE_TELEMETRY := true
export HF_HUB_OFFLINE := 1
# Compiled modules halve the time in which a command starts.
unexport PYTHONDONTWRITEBYTECODE
# TORCH_BACKEND=cpu|rocm…|cu… asks uv for another build of torch than the index's own.
TORCH_BACKEND ?=

.PHONY: help
help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

$(VENV)/.ready: pyproject.toml requirements.lock scripts/setup.sh
	TORCH_BACKEND=$(TORCH_BACKEND) PYTHON=$(PYTHON) scripts/setup.sh $(VENV)
	@touch $@

.PHONY: setup
setup: $(VENV)/.ready  ## the environment in .venv, from the lock file

.PHONY: lock
lock:  ## write requirements.lock again from pyproject.toml
	uv pip compile -q --universal --python-version 3.11 --all-extras --generate-hashes --no-emit-index-url \
	    --no-emit-package kaiwo-optimizer --custom-compile-command "make lock" pyproject.toml -o requirements.lock

# The tag that is asked once; builds take the digest that it had then. Commit the file.
BASE_IMAGE ?= python:3.11-slim
.PHONY: images-lock
images-lock:  ## write deploy/images/base.lock, the base image by digest (asks its registry, needs docker buildx)
	digest=$$(docker buildx imagetools inspect $(BASE_IMAGE) --format '{{.Manifest.Digest}}') && \
	    sh deploy/images/pinned.sh "$(BASE_IMAGE)@$$digest" && echo "$(BASE_IMAGE)@$$digest" > deploy/images/base.lock

.PHONY: sbom
sbom: setup  ## build/sbom/kopt-EXTRA.cdx.json: what each image installs, as CycloneDX
	$(BIN)/python -P deploy/images/sbom.py build/sbom

.PHONY: run
run: setup  ## start the platform on this machine and open its pages on loopback
	@$(BIN)/kopt up

.PHONY: lint
lint: setup  ## ruff, mypy strict, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: test
test: setup  ## all but what is long; installs Debian packages for real servers where it may
	scripts/test-packages.sh
	$(BIN)/python -P scripts/test_all.py

.PHONY: test-fast
test-fast: setup  ## without servers, browser and Ray
	$(BIN)/python -P -m pytest -m "not ray and not browser and not services and not cluster and not slow"

.PHONY: test-long
test-long: setup  ## further paths on a control plane, with Ray and real trainers, and the story (over an hour)
	scripts/test-packages.sh
	$(BIN)/python -P scripts/test_all.py --long

# CLUSTER=1 attacks a real control plane afterwards.
.PHONY: attack
attack: setup  ## attacks on what this product opens, see docs/security.md (three minutes; CLUSTER=1: ten)
	$(BIN)/python -P scripts/test_all.py --attacks
	$(if $(CLUSTER),$(BIN)/python -P -m pytest -m cluster tests/attacks)

.PHONY: test-thorough
test-thorough: setup test-long  ## test-long, fuzzing, properties with large budgets, mutants
	KOPT_THOROUGH=1 $(BIN)/python -P -m pytest -m thorough
	$(MAKE) mutants

# MUTANTS="placement" names groups of tests/mutants/modules.toml; with --again only what survived is tested once more.
.PHONY: mutants
mutants: setup  ## change each line of the most important modules; fast tests must notice (half an hour)
	$(BIN)/python -P tests/mutants/run.py $(MUTANTS)

.PHONY: story
story: setup control-plane  ## watch a training borrow GPUs, save, give them back before a rush, and go on (20 minutes)
	@KOPT_THOROUGH=1 $(BIN)/python -P -m pytest -q -s -rs --no-header --force-reruns 0 tests/story

.PHONY: control-plane
control-plane: setup  ## build the Kubernetes control plane of the tests (a quarter of an hour once, cached)
	$(BIN)/python -P tests/controlplane/build.py

# Not with -q: it would silence the warnings that --strict turns into errors.
.PHONY: docs
docs: export NO_MKDOCS_2_WARNING := 1
docs: setup  ## the documentation as a site in build/site; a broken link or anchor is an error
	$(BIN)/mkdocs build --strict --clean

.PHONY: bench
bench: setup  ## the tables of figures, beside their baselines
	$(BIN)/python -m benchmarks

.PHONY: bench-full
bench-full: setup  ## sizes on every timm model, not a sample of 300 (traces are kept; needs KOPT_DATA_DIR)
	$(BIN)/python -m benchmarks.sizing --full

.PHONY: default-models
default-models: setup  ## fit and measure the shipped default models again (needs KOPT_DATA_DIR)
	$(BIN)/python -P -m kopt.training.default_models
	$(BIN)/python -P -m kopt.training.default_figures

.PHONY: corpus
corpus: setup  ## record the logs of real trainers that are not there yet; CORPUS="--only lightning --again"
	$(BIN)/python -m benchmarks.checkpoint_corpus $(CORPUS)

.PHONY: measure
measure: setup  ## GPU memory of the sizing suite on this machine's GPU; MEASURE="--python …/python --budget 540"
	$(BIN)/python -m benchmarks.measure $(MEASURE)

.PHONY: test-torch
test-torch: setup  ## the probe of kopt estimate on the oldest, a middle and the newest torch
	KOPT_TRAINER_ENVIRONMENTS="oldest middle newest" $(BIN)/python -P -m pytest -m trainers tests/sizing
