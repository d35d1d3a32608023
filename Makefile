# make run     set up .venv, run the smoke matrix on what is here, write its page
# make test    set up .venv, run every test that this machine can
# make soak    set up .venv, run what is too slow for `make test` (kill loops, signals, random worlds, pages in a browser),
#              in a random order; SOAK_MINUTES=15 is its budget (default 45: everything), SOAK_SEED=N repeats an order
# make lint    set up .venv, ruff and mypy
# make nightly the full product of our norms' modes, operations, castings, dtypes and odd shapes in the interpreter, of
#              which `make test` has a selection; SHARE=3/20 runs the third twentieth of it; then every provider that
#              is installed over every input family, none of which is to be accused; then the Ascend tool chain is set
#              up (1.7 GB, once a host) and the Unified Buffer of every kernel of the norms' matrices reported and held
#              against its compiler
#
# PYTHON is the interpreter to start from.  Where it already imports a torch that sees an accelerator, that torch (and
# its triton) is used and nothing is installed over it.

PYTHON ?= python3
LONGEST := $(patsubst %,tests/%.py,fake/test_nodes fake/test_kills cheats/test_cheats fake/test_doctor_worlds \
             fake/test_resume cheats/test_poisoning)
BIN    := .venv/bin
# A host may ask for no bytecode; then every process of the suite, some 1,000, compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test soak lint nightly clean

run: .venv/run.ok
	$(BIN)/python -m farm run matrices/smoke.yaml --address local

# A file at a time each, in the order given: what takes longest first, or it would be waited for last.  More at once than
# there are cores, since many tests wait, for processes to start and to end.  Files, not their folder: pytest would take
# a file that is named beside its folder for a part of that folder, in its place there.
FAKE   := $(filter-out $(LONGEST),$(wildcard tests/fake/test_*.py tests/cheats/test_*.py))
test: .venv/test.ok
	$(BIN)/python -m pytest -q -m "not long" -n 5 --dist loadfile --no-loadscope-reorder \
	  $(LONGEST) tests/compiled tests/mutants tests/interpreted $(FAKE) tests/golden tests/hardware tests/pure

soak: .venv/test.ok
	$(BIN)/python -m pytest -v tests/soak

nightly: .venv/test.ok
	FARM_NIGHTLY=$(or $(SHARE),1) $(BIN)/python -m pytest -q -n auto tests/interpreted/test_gpu_cells.py
	FARM_NIGHTLY=1 $(BIN)/python -m pytest -q tests/compiled/test_built_split.py tests/compiled/test_built_ring_cells.py
	$(BIN)/python -m farm run matrices/no_false_accusation.yaml --backend cpu --address inline --strict-peers --no-page
	$(BIN)/python -m farm compile --setup ascend
	$(BIN)/python -m farm compile matrices/rms_norm.yaml matrices/fused_add_rms_norm.yaml --target ascend910b --no-page
	$(BIN)/python -m pytest -q tests/compiled/test_built_ascend.py tests/pure/test_ascend_compile.py

lint: .venv/test.ok
	$(BIN)/ruff check farm kernels dashboards tests benchmarks
	$(BIN)/ruff format --check farm kernels dashboards tests benchmarks
	$(BIN)/mypy

.venv/%.ok: pyproject.toml farm/bootstrap.py
	$(PYTHON) farm/bootstrap.py $*

clean:
	rm -rf .venv
