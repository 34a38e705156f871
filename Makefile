# Two commands on a fresh Debian or Ubuntu with Python 3.10 or newer:
#   make demo [TEXT="Hello"]   speaks through a real ComfyUI and says where the sound is
#   make test                  runs every test that needs no GPU
#
#   make comfyui [FLAGS=...]   keeps ComfyUI with LiveVoice running for a browser
#   make sanitize              the kernels' tests under NVIDIA's compute-sanitizer
#   make test-cuda             the tests that need an NVIDIA GPU, except:
#   make test-gpu [GPU=...]    a real ComfyUI on a GPU, long; GPU= takes options of pytest
#   make gpu-bundle            what test-gpu needs on a machine without internet (build/gpu)
#   make wheels                what is released, into dist: wheels for the Pythons here, hashes
#   make pack                  ComfyUI's registry package, with the wheels' extensions inside
#   make lint | native | install | clean
#
# ENV=folder  where the environment is made      PYTHON=...  what it is made with
# PY=...      run with an environment that is already complete; then nothing is installed

PYTHON = python3
ENV = .venv
PY = $(ENV)/bin/python
TEXT =
FLAGS =
GPU =
# By the environment, so that no quote in it meets the shell.
export TEXT

# A toolkit is often there without being on the PATH.
CUDA_HOME ?= $(firstword $(wildcard /usr/local/cuda /usr/local/cuda-*))
export CUDA_HOME

.PHONY: help demo test sanitize test-cuda test-gpu gpu-tests gpu-bundle comfyui wheels pack lint native native-for-gpu install install-tests clean

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

demo: install native-for-gpu
	@"$(PY)" -m tests.comfy.demo $${TEXT:+"$$TEXT"}

test: install-tests lint native
	@"$(PY)" -m pytest -m "not cuda"

test-cuda: install-tests native
	@"$(PY)" -m pytest -m "cuda and not comfy"

# Watches every access of the kernels, at small sizes.
SANITIZER = compute-sanitizer
sanitize: install-tests native
	@for tool in memcheck racecheck initcheck; do echo "$$tool:"; LIVEVOICE_SMALL=1 \
	    "$(SANITIZER)" --tool $$tool --error-exitcode 9 --target-processes all "$(PY)" -m pytest -q -m cuda \
	    $(addprefix tests/kernels/test_,$(addsuffix .py,$(KERNELS))) || exit 1; done
KERNELS = attention_decode codec_conv embed gemv pack prefill_kernels sample

gpu-bundle: install
	@"$(PY)" tests/comfy/bundle.py make

# Where a bundle but no environment is, PYTHON is one that has torch, and nothing is fetched.
test-gpu:
ifneq ($(if $(wildcard $(ENV)),,$(wildcard build/gpu/bundle.tar.xz)),)
	@"$(PYTHON)" tests/comfy/bundle.py unpack
	@PYTHONPATH="$(CURDIR)/.comfyui/site" $(MAKE) --no-print-directory PY="$(PYTHON)" gpu-tests
else
	@$(MAKE) --no-print-directory gpu-tests
endif

gpu-tests: test-cuda
	@"$(PY)" -m pytest -s -m "cuda and comfy" $(GPU)

comfyui: install native-for-gpu
	@"$(PY)" -m tests.comfy.comfyui $(FLAGS)

wheels:
	@"$(PYTHON)" .ci/release.py wheels $(WHEELS)

pack:
	@"$(PYTHON)" .ci/release.py pack

lint: install-tests
	@"$(PY)" -m ruff check .
	@"$(PY)" -m ruff format --check .

# Says why when there is no CUDA compiler; everything else runs without the extension.
native: install
	@"$(PY)" -W ignore setup.py --quiet build_ext --inplace

# Compiling takes minutes: not for a demo on a machine that can't use it.
native-for-gpu: install
	@! command -v nvidia-smi >/dev/null || "$(PY)" -W ignore setup.py --quiet build_ext --inplace

install install-tests:
ifneq ($(origin PY),command line)
	@"$(PYTHON)" tests/comfy/install.py --env "$(ENV)" $(if $(findstring tests,$@),--tests)
endif

clean:
	rm -rf .venv .comfyui output build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -f engine/_C*.so
