#!/usr/bin/env bash
# An arm against itself on a GPU host:  benchmarks/gpu_same.sh STORE [few|many|again|all]
#   few    6 cells twice, to see that everything works (one minute)
#   many   324 cells once
#   again  the 324 cells once more and 102 twice: what `many` compiled is found in the cache, so this shows a warm verdict
#   all    `many` and `again`, the default
# LIMIT=SECONDS ends it in time: a comparison that is cut prints what it has so far, decides nothing, and is resumed by
# the next call with the same STORE.  Both arms share STORE/triton, Triton's cache, which lasts longer than a run: they
# are the same files, so each kernel is compiled once.
# Prints a table last: seconds by the wall, exit code, verdict, times and utilisation of each, and the tally of the
# store, whose records are in STORE/noise (docs/compare.md: what is published of them).  Exit code: the largest of the
# comparisons', 1 where identical code was called changed.  Needs torch and triton importable by python3.
# BACKEND and MATRIX name others than cuda and matrices/rms_norm.yaml, ADDRESS another than inline.
set -u
store=$1 python=${PYTHON:-python3} backend=${BACKEND:-cuda} matrix=${MATRIX:-matrices/rms_norm.yaml}
export PYTHONUNBUFFERED=1 FARM_ADDRESS=${ADDRESS:-inline} FARM_STORE=$store
many='provider=farm,dtype=bf16|fp32' some='provider=farm|torch,dtype=bf16,operation=forward'
few='provider=farm,dtype=bf16,operation=forward,shape=4096x1024'
case ${2:-all} in
  few) runs=(few-1 few-2) ;;
  many) runs=(many-1) ;;
  again) runs=(many-2 some-1 some-2) ;;
  all) runs=(many-1 many-2 some-1 some-2) ;;
  *) echo "gpu_same.sh: $2 is none of few, many, again, all" >&2; exit 2 ;;
esac

mkdir -p "$store"
command -v nvidia-smi > /dev/null && nvidia-smi --query-gpu=index,name,power.limit,driver_version --format=csv
worst=0
for run in "${runs[@]}"; do
  name=${run%-*} begun=$(date +%s.%N) left=$((${LIMIT:-86400} - SECONDS))
  if [ "$left" -lt 20 ]; then echo "$run: not begun, $left s were left" | tee -a "$store/table.txt"; continue; fi
  words=(ab "$matrix" --backend "$backend" --same --a "env.TRITON_CACHE_DIR=$store/triton" --select "${!name}" --run-id "$run")
  if [ -e "$store/runs/$run/pairs.parquet" ] && grep -q '"finished": "' "$store/runs/$run/run.json"; then continue; fi
  [ -e "$store/runs/$run/journal.jsonl" ] && words=(resume "$run")
  echo "== farm ${words[*]}  at $SECONDS s"
  timeout --preserve-status -s INT -k 30 "$left" "$python" -m farm "${words[@]}" > "$store/$run.txt" 2> >(tee -a "$store/$run.err" | cut -c1-200 >&2)
  code=$?
  [ "$code" -gt "$worst" ] && worst=$code
  "$python" - "$run" "$code" "$begun" "$(date +%s.%N)" "$store" >> "$store/table.txt" <<'PYTHON'
import sys
from pathlib import Path

run, code, begun, ended, store = sys.argv[1:]
told = (Path(store) / f"{run}.txt").read_text().splitlines() or ["nothing was printed"]
spent = [line for line in (Path(store) / f"{run}.err").read_text().splitlines() if line.startswith("utilisation")]
print(f"{run:8} {float(ended) - float(begun):6.1f} s  exit {code}  {told[0]}")
print(*(f"{'':8} {line}" for line in [*(l for l in told if l.startswith("times of")), *spent[-1:]]), sep="\n")
PYTHON
done
echo; cat "$store/table.txt"
"$python" -m farm ab --tally
exit "$worst"
