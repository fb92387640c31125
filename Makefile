# Two commands for a new machine: `make demo` and `make test`. Everything else is for those who work on multisched.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
STAMP  := $(VENV)/.installed
ARGS   ?=

# Every process would compile the whole program anew: a second of CPU each, and the tests start hundreds.
unexport PYTHONDONTWRITEBYTECODE

# Two workers on two cores halve the suite; worksteal keeps both busy to the end.
PYTEST := $(BIN)/python -m pytest
SPREAD := -n 2 --dist worksteal
# On the real control plane two thirds are waiting, and a control plane serves one file after the other: a file each, slow
# ones first. With four workers on two busy cores a leader was seen to lose its lease.
BY_FILE := -n 3 --dist loadfile --no-loadscope-reorder

.PHONY: venv lock chart dist demo test check check-types check-layers check-style page sim sim-coverage mutants mutation soak oracle controlplane real bench

venv: $(STAMP)

# Writes what pip would for an editable install. The second line of the command is for the shell, and finds a Python in any path.
define LINK
import pathlib, sys, sysconfig
scripts, site = (pathlib.Path(sysconfig.get_path(name)) for name in ("scripts", "purelib"))
(site / "multisched.pth").write_text(f"{pathlib.Path.cwd()}\n")
lines = "#!/bin/sh", f"'''exec' \"{sys.executable}\" \"$$0\" \"$$@\" #'''", "from multisched.cli.main import main", "main()", ""
(scripts / "multisched").write_text("\n".join(lines))
(scripts / "multisched").chmod(0o755)
endef
export LINK

# What the program needs, without what its tests need. The packages are plain Python, used where they are: no build.
$(RUNTIME): deploy/requirements.txt
	@echo "installing into $(VENV) what multisched needs, once" >&2
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --require-hashes -r deploy/requirements.txt
	@$(BIN)/python -c "$$LINK"
	@touch $@

$(STAMP): tests/requirements.txt $(RUNTIME)
	@echo "installing into $(VENV) what tests and checks need, once" >&2
	@$(BIN)/python -m pip install --quiet --require-hashes -r tests/requirements.txt
	@touch $@

lock: # re-resolves both lock files; needs uv on the PATH
	uv pip compile pyproject.toml --group dev --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header -q -o tests/requirements.txt
	uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header -q -c tests/requirements.txt -o deploy/requirements.txt

chart: venv # what the Helm chart holds of other files: definitions, policies, alerts, dashboards, the schema of its values
	$(BIN)/python -m tests.unit.deploy.chart_files

dist: venv # wheel, sdist, bill of materials and checksums of what is committed, in dist/; the same bytes each time
	$(BIN)/python -m tests.release.dist $(ARGS)

demo: $(RUNTIME) # the embedded cluster, three domains, a mixed workload; ARGS="--once -o json" ends by itself
	@$(BIN)/multisched demo $(ARGS)

# A tenth of the time is waiting, which a third worker uses; in CI, the stages beside do.
test: venv # everything that needs nothing but Python; WHOLE=1: the slow tests, too, and twice as many examples of properties
	$(PYTEST) $(SPREAD) $(if $(WHOLE),--slow --hypothesis-profile=ci --durations=100,-n 3) $(ARGS)

CHECKS := check-types check-layers check-style
check: venv # style, types, layers, the Dockerfile; all are run, two at a time, also when one fails
	@$(MAKE) --no-print-directory --keep-going --output-sync=target --jobs 2 $(CHECKS)

check-types: venv
	$(BIN)/mypy

check-layers: venv
	$(BIN)/lint-imports

check-style: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/hadolint deploy/Dockerfile

page: venv # the web page in Chromium: every view, keyboard, narrow, dark, accessibility; installs Debian's Chromium if there is no browser
	tests/page/set_up.sh
	$(PYTEST) tests/page $(ARGS)

sim: venv # 200 seeded simulations of the whole program; a failing seed is printed and replays
	$(BIN)/python -m tests.sim.run --seeds 200 --jobs 2 $(ARGS)

sim-coverage: venv # lines and branches of the core that 200 seeds execute; fails below the floor of a folder
	$(BIN)/python -m tests.sim.coverage --seeds 200 --jobs 2 $(ARGS)

mutants: venv # deliberate defects, each of which the simulation must catch
	$(BIN)/python -m tests.sim.mutants $(ARGS)

mutation: venv # defects drawn at random, each against tests, then 100 seeds; ARGS="--seed N --sample 100"; an hour
	$(BIN)/python -m tests.mutation.run $(ARGS)

soak: venv # the property tests with 10,000 examples each
	$(PYTEST) $(SPREAD) --hypothesis-profile=soak --timeout=7200 tests/unit tests/conformance $(ARGS)

oracle: venv # our decisions against kube-scheduler's own code on fresh random clusters; needs Go; ARGS="--help"
	$(BIN)/python -m tests.conformance.oracle $(ARGS)

controlplane: # the real control plane, helm, kubeconform and kustomize, built once into a cache folder outside the repository; needs Go
	tests/real/controlplane/build.sh
	tests/real/tools/build.sh

real: venv controlplane # integration tests on the real control plane, what only that can answer, kubectl on both; what is released
	status=0; \
	$(PYTEST) $(BY_FILE) --cluster=real tests/release tests/real $(addprefix tests/integration/,api client kubectl) $(ARGS) || status=1; \
	$(PYTEST) $(BY_FILE) --cluster=embedded tests/integration/kubectl $(ARGS) || status=1; \
	MULTISCHED_TEST_KUBECTL=$$(tests/real/controlplane/build.sh --where)/kubectl $(PYTEST) $(SPREAD) --slow tests/integration/docs $(ARGS) || status=1; \
	exit $$status

bench: venv controlplane # multisched against kube-scheduler on one real API server; ARGS="--help" lists the scenarios
	$(BIN)/python -m tests.perf.kube_bench $(ARGS)
