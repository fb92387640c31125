# Two commands for a new machine: `make demo` and `make test`. Everything else is for those who work on multisched.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: venv lock demo test check sim soak controlplane real bench

venv: $(STAMP)

$(STAMP): tests/requirements.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r tests/requirements.txt
	$(BIN)/python -m pip install --quiet --no-build-isolation --no-deps -e .
	touch $@

lock: # re-resolves both lock files; needs uv on the PATH
	uv pip compile pyproject.toml --group dev --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header -q -o tests/requirements.txt
	uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header -q -c tests/requirements.txt -o deploy/requirements.txt
