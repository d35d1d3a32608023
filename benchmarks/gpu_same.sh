#!/usr/bin/env bash
# An arm against itself on a GPU host:  benchmarks/gpu_same.sh STORE [few]
#   324 cells once and 102 twice; `few`: 6 cells twice, to see that everything works
# Prints a table last: seconds by the wall, exit code, verdict and utilisation of each, and the tally of the store, whose
# records are in STORE/noise (docs/compare.md: what is published of them).  Exit code 1 if identical code was called
# changed.  Needs torch and triton importable by python3; 10 to 12 minutes, `few` one.
# BACKEND and MATRIX name others than cuda and matrices/rms_norm.yaml, ADDRESS another than inline.
set -u
store=$1 python=${PYTHON:-python3} backend=${BACKEND:-cuda} matrix=${MATRIX:-matrices/rms_norm.yaml}
export PYTHONUNBUFFERED=1 FARM_ADDRESS=${ADDRESS:-inline} FARM_STORE=$store
many='provider=farm,dtype=bf16|fp32' some='provider=farm|torch,dtype=bf16,operation=forward'
few='provider=farm,dtype=bf16,operation=forward,shape=4096x1024'
if [ "${2:-}" = few ]; then runs=(few-1 few-2); else runs=(many some-1 some-2); fi

mkdir -p "$store"
command -v nvidia-smi > /dev/null && nvidia-smi --query-gpu=index,name,power.limit,driver_version --format=csv
worst=0
for run in "${runs[@]}"; do
  name=${run%-*} begun=$(date +%s.%N)
  "$python" -m farm ab "$matrix" --backend "$backend" --same --select "${!name}" --run-id "$run" \
    > "$store/$run.txt" 2> "$store/$run.err"
  code=$?
  [ "$code" -gt "$worst" ] && worst=$code
  "$python" - "$run" "$code" "$begun" "$(date +%s.%N)" "$store" >> "$store/table.txt" <<'PYTHON'
import sys
from pathlib import Path

run, code, begun, ended, store = sys.argv[1:]
told = (Path(store) / f"{run}.txt").read_text().splitlines() or ["nothing was printed"]
spent = [line for line in (Path(store) / f"{run}.err").read_text().splitlines() if line.startswith("utilisation")]
print(f"{run:8} {float(ended) - float(begun):6.1f} s  exit {code}  {told[0]}")
print(*(f"{'':8} {line}" for line in [*(l for l in told if l.startswith("times of")), *spent]), sep="\n")
PYTHON
  tail -2 "$store/$run.err" | cut -c1-300
done
echo; cat "$store/table.txt"
"$python" -m farm ab --tally
exit "$worst"
