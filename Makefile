# make demo | make test — each sets up .venv by itself, and is fast the second time.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: help setup demo test test-ecosystem test-native test-ray test-long wheel docs lint clean

help:            ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

setup: $(STAMP)  ## the environment alone, in .venv

# torch goes first and alone: a looser request pulls gigabytes of CUDA packages.
$(STAMP): pyproject.toml constraints.txt
	@echo "Setting up $(VENV) (once, a minute or two) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt torch==2.13.0
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt setuptools
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[test,lint,images]'
	@touch $@

demo: setup      ## train a sparse network with SGD, SAM and ZO-SAM on the digits and compare
	@$(BIN)/zosam demo

test: setup      ## the whole test suite, one torch thread per worker
	@OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

test-ecosystem:  ## the tests beside Lightning, accelerate and transformers, in an environment of their own
	@test -x .venv-ecosystem/bin/python || $(PYTHON) -m venv .venv-ecosystem
	@.venv-ecosystem/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt torch==2.13.0 setuptools
	@.venv-ecosystem/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[test,ecosystem]'
	@OMP_NUM_THREADS=1 .venv-ecosystem/bin/python -m pytest tests/ecosystem tests/lab/models/test_ecosystem.py

test-native: setup ## the kernel tests under the address and undefined-behaviour sanitizers
	@$(BIN)/python tests/kernels/native.py

test-ray: setup  ## sweeps on a Ray cluster of this machine
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt ray
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/lab/paper/test_cluster.py

LONG := tests/laws tests/device tests/distributed tests/kernels tests/optim/test_guards.py tests/sparse/test_exact.py \
	tests/lab/faults tests/lab/fuzz tests/lab/test_run.py tests/lab/paper/test_paper_tier.py
test-long: setup ## every law for every pair (on the pretended device and on two ranks too), DeiT on two processes, kills, five minutes of hostile files
	@OMP_NUM_THREADS=1 ZOSAM_LONG=1 ZOSAM_FUZZ_SECONDS=300 $(BIN)/python -m pytest -n auto $(LONG)

wheel: setup     ## wheels for Linux (x86-64 and aarch64) that carry the compiled kernels, and the sdist, in dist/
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[wheel]' --no-build-isolation
	@for machine in x86_64 aarch64; do \
		rm -rf build src/zosam/kernels/lib && \
		$(BIN)/python -c "from zosam.kernels.build import build_shipped; build_shipped('$$machine')" && \
		ZOSAM_PLATFORM=manylinux_2_17_$$machine $(BIN)/python -m pip wheel . -qq --no-deps --no-build-isolation -w dist && \
		$(BIN)/auditwheel show dist/zosam-*-manylinux_2_17_$$machine.whl || exit 1; done; rm -rf build src/zosam/kernels/lib
	@$(BIN)/python -c "from setuptools.build_meta import build_sdist; build_sdist('dist')"

docs: setup      ## the documentation, into site/: links checked, nothing asked of the network by its pages
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[docs]' --no-build-isolation
	@OMP_NUM_THREADS=1 NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q
	@echo "Open site/index.html"

lint: setup      ## ruff, mypy --strict, and who may import whom
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

clean:           ## remove the environment and every cache
	rm -rf $(VENV) .venv-ecosystem .pytest_cache .mypy_cache .ruff_cache .hypothesis build site src/*.egg-info
