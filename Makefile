# make demo and make test each set up what they need in .venv; nothing else is required but Python 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint types imports unit notebooks docs wheel bench clean

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

demo: $(VENV)/.ready  ## the article's set-ups and DeepSeek-V3 on four systems, predicted beside stated
	$(BIN)/python -m perfmodel demo

test: lint types imports unit notebooks docs wheel  ## everything that has to hold

lint: $(VENV)/.ready
	$(BIN)/ruff format --check perfmodel tests docs
	$(BIN)/ruff check perfmodel tests docs

types: $(VENV)/.ready
	$(BIN)/mypy

imports: $(VENV)/.ready
	$(BIN)/lint-imports

unit: $(VENV)/.ready
	$(BIN)/pytest -n auto --dist loadfile --cov --cov-report=term:skip-covered -q

notebooks: $(VENV)/.ready
	$(BIN)/python tests/run_notebooks.py

docs: $(VENV)/.ready  ## the documentation as pages in out/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

wheel: $(VENV)/.ready
	$(BIN)/python tests/check_wheel.py

bench: $(VENV)/.ready  ## speed and memory, as ratios within one run
	$(BIN)/pytest tests/benchmarks --benchmark-only --benchmark-columns=min,median,rounds -q

clean:
	rm -rf $(VENV) dist build .coverage .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
