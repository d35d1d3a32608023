# make run     set up .venv, run the smoke matrix on what is here, write its page
# make test    set up .venv, run every test that this machine can
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
LONGEST := nodes kills slurm resume
BIN    := .venv/bin
# A host may ask for no bytecode; then every process of the suite, some 1,000, compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test lint nightly clean

run: .venv/run.ok
	$(BIN)/python -m farm run matrices/smoke.yaml

# A file at a time each.  More at once than two cores, for some wait: in the second call mostly, for processes to start
# and to end; its longest files first, or they would be waited for last.
test: .venv/test.ok
	$(BIN)/python -m pytest -q -n 3 --dist loadfile tests/pure tests/interpreted tests/compiled tests/mutants
	$(BIN)/python -m pytest -q -n 5 --dist loadfile --no-loadscope-reorder \
	  $(LONGEST:%=tests/fake/test_%.py) tests/cheats tests/fake tests/hardware

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
