#!/usr/bin/env bash
# The reference matrix on a GPU host, where its seconds go:  benchmarks/gpu_reference.sh STORE cold|warm
#   cold  Triton's and Inductor's caches are STORE/cache, made anew; warm: with what an earlier call left there
# Prints a line per cause of run.json's utilisation, what the busy time outside timing is, how many kernels first calls
# compiled, by provider, and how many samples were taken.  About 4 minutes cold and 2.5 warm.  LIMIT=SECONDS (540) ends
# it in time.  BACKEND and MATRIX name others than cuda and matrices/rms_norm.yaml; SELECT leaves out cells.  TREE runs
# another revision of the farm, of a folder (git archive 18c25fb | tar x -C TREE), by its own words and matrix: its
# seconds by the wall are to be compared with those of this one.  Needs torch and triton importable by python3.  Exit
# code: the run's.
set -u
store=$1 how=$2 python=${PYTHON:-python3} run=$2-$(date +%H%M%S)
export PYTHONUNBUFFERED=1 FARM_ADDRESS=${ADDRESS:-inline} FARM_STORE=$store
export TRITON_CACHE_DIR=$store/cache/triton TORCHINDUCTOR_CACHE_DIR=$store/cache/inductor
case $how in
  cold) rm -rf "$store/cache" ;;
  warm) [ -d "$store/cache" ] || { echo "gpu_reference.sh: $store/cache is missing; run cold first" >&2; exit 2; } ;;
  *) echo "gpu_reference.sh: $how is neither cold nor warm" >&2; exit 2 ;;
esac
mkdir -p "$store/cache"
select=(); [ -n "${SELECT:-}" ] && select=(--select "$SELECT")
case $python in */*) python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python") ;; esac
case $store in /*) ;; *) echo "gpu_reference.sh: $store is not an absolute path" >&2; exit 2 ;; esac
begun=$SECONDS
(
  if [ -n "${TREE:-}" ]; then cd "$TREE" && export PYTHONPATH=$TREE${PYTHONPATH:+:$PYTHONPATH} || exit 2; fi
  exec timeout --preserve-status -s INT -k 20 "${LIMIT:-540}" "$python" -m farm run "${MATRIX:-matrices/rms_norm.yaml}" \
    --address "$FARM_ADDRESS" --out "$store" --backend "${BACKEND:-cuda}" --devices 1 --no-page --run-id "$run" \
    ${select[@]+"${select[@]}"}
) > "$store/$run.txt" 2> >(tee "$store/$run.err" | tail -6 | cut -c1-250 >&2)
code=$?
echo "$run: $((SECONDS - begun)) s by the wall${TREE:+, of $TREE}"
"$python" - "$store/runs/$run" "$code" <<'PYTHON'
import json
import sys
from collections import Counter
from pathlib import Path

from farm import utilisation

folder, code = Path(sys.argv[1]), sys.argv[2]
head = json.loads((folder / "run.json").read_text()) if (folder / "run.json").exists() else {}
if not (folder / "journal.jsonl").exists():
    sys.exit(f"{folder.name}: exit {code}, no run was begun")
cells, compiled, loaded, phases, samples = [], Counter(), Counter(), Counter(), 0
for line in (folder / "journal.jsonl").open():
    event = json.loads(line)
    if event["event"] == "cell":
        cells.append(event["cell"])
    elif event["event"] == "measured":
        facts, provider = event["facts"], cells[event["cell"]]["provider"]
        built = facts.get("launch", {}).get("built") or {}
        compiled[provider] += built.get("compiled", 0)
        loaded[provider] += built.get("loaded", 0)
        samples += len((event.get("timing") or {}).get("samples_us", []))
        for phase, seconds in facts.get("phases_s", {}).items():
            phases[phase, provider] += seconds
told = utilisation.read(head)
if not told:  # a revision that did not count them
    timed, cells = sum(s for (phase, _), s in phases.items() if phase == "timing"), len(cells)
    print(f"{folder.name}: exit {code}, {head.get('counts')}, {cells} cells, timing {timed:.1f} s, {samples} samples")
    sys.exit()
print(f"{folder.name}: exit {code}, {head.get('counts')}, {told.get('seconds', 0)} s, {samples} samples")
for cause, seconds, share in utilisation.shares(told):
    print(f"  {cause:9} {seconds:7.1f} s {share:5.0%}  {utilisation.CAUSES[cause]}")
idle = {*utilisation.OUTSIDE, "timing", "work", "inputs", "judge", "pause", "away"}
busy = {c: s for c, s, _ in utilisation.shares(told) if c not in idle}
print(f"busy outside timing: {sum(busy.values()):.1f} s ({', '.join(f'{c} {s:.1f}' for c, s in busy.items())})")
print(f"kernels that first calls compiled: {dict(compiled)}; that they loaded: {dict(loaded)}")
for phase in ("import", "compile"):
    print(f"{phase} by provider:", {p: round(s, 1) for (name, p), s in sorted(phases.items()) if name == phase})
PYTHON
exit "$code"
