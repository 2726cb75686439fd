# What contributors run; see CONTRIBUTING.md.

PYTHON = .venv/bin/python

.PHONY: test lint records bench man pictures dist

test: .venv
	$(PYTHON) -m pytest

lint: .venv
	$(PYTHON) -m pip install --quiet -c constraints.txt ".[lint]"
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

records: .venv
	BERTCLI_GOLDEN=write $(PYTHON) -m pytest -q tests/test_architecture.py
	BERTCLI_RECORD=write $(PYTHON) -m pytest -q tests/test_recorded.py
	git --no-pager diff tests/golden tests/recorded

man: .venv
	$(PYTHON) scripts/make_man.py build/man

pictures: .venv
	$(PYTHON) samples/make_pictures.py

dist: .venv
	$(PYTHON) scripts/check_dist.py

bench: .venv
	$(PYTHON) -m pip install --quiet -c constraints.txt -r benchmarks/requirements.txt
	$(PYTHON) benchmarks/embedding.py

.venv:
	python3 -m venv .venv
	.venv/bin/pip install -c constraints.txt -e ".[test]"
