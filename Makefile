# Every target makes and uses .venv; nothing has to be set up by hand.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONSTRAINTS := constraints/dev.txt
ERA := .venv-era/4.57.6
TARGETS := examples/targets
PAIR := examples/pair

.PHONY: setup era demo test lint format bench sweep clean

setup: $(VENV)/.done

# torch first and by its exact version: a bare `torch` may take a build of several gigabytes.
$(VENV)/.done: pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) torch
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[dev]'
	touch $@

era: $(ERA)/.done

# The published code's own environment. torch is shared with .venv; transformers and what it needs are its own.
$(ERA)/.done: $(VENV)/.done constraints/era-4.57.6.txt
	$(PYTHON) -m venv $(ERA)
	$(ERA)/bin/python -m pip install --quiet --requirement constraints/era-4.57.6.txt
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
		> "$$($(ERA)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zz-shared-torch.pth"
	touch $@

# First 54 GB of checkpoint that lie on no disk (true headers, no values), which inspect reads and loads nothing of; then
# a configuration without weights, then a small trained pair with them. What both came to is said at the end.
demo: setup
	@sparse=$$(mktemp -d) && trap 'rm -rf "$$sparse"' EXIT && \
		$(BIN)/python -m compatfix.demo.sparse_checkpoint "$$sparse/Qwen3.6-27B" --config $(TARGETS)/qwen3.6-27b && \
		$(BIN)/compatfix inspect "$$sparse/Qwen3.6-27B" --draft $(TARGETS)/qwen3.6-27b-dflash
	$(BIN)/compatfix gate vendor/ddtree_ref --target $(TARGETS)/qwen3.6-27b \
		--draft $(TARGETS)/qwen3.6-27b-dflash --patch copy
	$(BIN)/compatfix gate vendor/ddtree_ref --target $(PAIR)/target --draft $(PAIR)/draft --patch copy --no-ladder \
		--on weights --prompt-file $(PAIR)/prompts.jsonl --tree-budget 8,16 --repetitions 1 \
		--prompts 8 --max-new-tokens 32 --require code,weights,draft --report-dir reports/pair
	@echo
	@$(BIN)/compatfix report summary reports reports/pair

# Two at a time: whole modules, whose fixtures are dear. A gate's own two tasks share what is left.
test: setup era
	$(BIN)/python -m pytest -n 2 --dist loadscope

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	for script in benchmarks/*.py; do $(BIN)/python "$$script" || exit 1; done

sweep: setup era
	$(BIN)/python -m pytest -m sweep --timeout 3600

clean:
	rm -rf $(VENV) .venv-era
