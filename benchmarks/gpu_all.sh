#!/usr/bin/env bash
# Everything that is to be proven on NVIDIA GPUs, in three calls of bounded time:  benchmarks/gpu_all.sh OUT one|two|three
#
#   one    the doctor, the smoke matrix, two Ray nodes of which one dies; then the hardware tests on one GPU, beside the
#          timers of the fused op and the widest float32 rows on the other
#   two    no right kernel is accused; medians from process to process, beside plain backward cells of the kernels' table;
#          the roofs, and both reference matrices with their page
#   three  whether telemetry moves a time, bytes by counters, the ring kernels' cases, the same bits; beside them rows
#          split over programs: right? tuned? faster?
#
# Or by name:  benchmarks/gpu_all.sh OUT doctor smoke hardware -- timers plain
# A step that uses every GPU has them alone.  The others between two such are two lanes, before and after `--`, on the
# first two GPUs at the same time; on a host with one GPU they follow each other.
#
# Variables: TASKS of the search and CELLS of the table after it, CONFIRM which of them (else those in doubt), MEASURED what
# tuned.py says of the machine; SELECT and ADDRESS of the matrices' run; TOTAL_S, WORK, PYTHON.
#
# Needs torch, triton, ray and pytest importable by $PYTHON (python3), and peers, as far as they are to be measured.  All
# together takes at most TOTAL_S seconds (560); each step has a limit of its own, and what it started ends with it.  In OUT
# also for whoever is cut off: table.txt, a line per step the moment it ends; reports.tgz and runs.tgz, made anew every
# 20 s; the page.
set -u
python=${PYTHON:-python3}
here=$(cd "$(dirname "$0")/.." && pwd)
export PYTHONUNBUFFERED=1 FARM_ADDRESS=local  # through Ray, as on a cluster

# ---- the steps ---------------------------------------------------------------------------------------------------------

limit_of() {  # seconds; 0: no such step
  case $1 in
    doctor) echo 50 ;; smoke) echo 110 ;; nodes) echo 270 ;; accused) echo 230 ;; calibrate) echo 60 ;; fill) echo 160 ;;
    matrices) echo 170 ;; hardware) echo 330 ;; timers) echo 120 ;; repeat) echo 140 ;; telemetry) echo 115 ;;
    plain) echo 110 ;; wide) echo 130 ;; ring) echo 140 ;; bitwise) echo 150 ;; counters) echo 150 ;;
    split) echo 60 ;; tune) echo 150 ;; cells) echo 170 ;; confirm) echo 170 ;; widecells) echo 150 ;; upstream) echo 40 ;; *) echo 0 ;;
  esac
}
uses_all() { case $1 in doctor | smoke | nodes | accused | calibrate | fill | matrices) return 0 ;; esac; return 1; }

module() { "$python" -m "benchmarks.$1" "${@:2}"; }
pytests() { "$python" -m pytest -q -s -p no:cacheprovider "$@"; }
farm() { "$python" -m farm "$@" 2>&1 | grep --line-buffered -v ' done, '; return "${PIPESTATUS[0]}"; }
tell() { grep -ahs "$1" "$2" | tail -1 | sed 's/^/= /'; }  # what of a file stands in the table
WIDE_TASKS='rms_norm/forward/bfloat16/8192x131072 fused_add_rms_norm/forward/bfloat16/8192x131072
  fused_add_rms_norm/backward/float32/4096x16384 rms_norm/backward/bfloat16/8192x131072
  fused_add_rms_norm/backward/bfloat16/8192x131072 fused_add_rms_norm/forward/bfloat16/16384x32768
  fused_add_rms_norm/backward/bfloat16/8192x32768 rms_norm/forward/bfloat16/16384x32768'
tuned_tree() {  # with the configurations that a search has just found
  if [ -d tuned ]; then cd tuned && export PYTHONPATH="$PWD:$PYTHONPATH" || exit; fi
}

kernels_table() {  # NAME SECONDS CELLS..., by what a search has just found
  tuned_tree
  module kernels --cells "${@:3}" --warm 8 --budget $(($2 - 8)) --out "$at/$1"
  local code=$?
  tell '^[0-9]*x[0-9]* .*x' "$at/$1/kernels.txt"
  return $code
}

run_step() (  # NAME SECONDS, in the folder of results
  seconds=$2 at=$PWD
  case $1 in
    doctor)
      "$python" - << 'PY'
from farm.backends import cuda
from farm.cell import Target
from farm.node.admission import complete

for device in cuda.detect():
    who = cuda.identity(device.id, {})
    print(device, who)
    print("target:", Target(**complete({"backend": "cuda", "model": who.model}, who)) if who else "unknown")
print("complaints:", cuda.complaints() or "none")
PY
      "$python" -m farm doctor --backend cuda --out . > doctor.txt 2>&1
      code=$?
      grep -E '^(fail|warn)' doctor.txt
      echo "= $(tail -1 doctor.txt)"
      exit $code ;;
    smoke)
      farm run "$here/matrices/smoke.yaml" --backend cuda --run-id smoke --no-page --out runs/smoke > smoke.txt
      code=$?
      tail -20 smoke.txt
      targets=$(grep -oh '"target": *"cuda:[^"]*"' runs/smoke/runs/smoke/journal.jsonl | sort | uniq -c | tr -s ' ' | tr '\n' ';')
      pytests "$here/tests/hardware/test_cuda.py" -k two_gpus > two_gpus.txt 2>&1 || code=$?
      tail -3 two_gpus.txt
      echo "= $(grep -a 'accounted for' smoke.txt)$targets $(tail -1 two_gpus.txt)"
      exit $code ;;
    nodes) pytests "$here/tests/hardware/test_two_nodes.py" ;;
    accused) module parts "$here/matrices/no_false_accusation.yaml" --seconds $((seconds - 25)) --out runs/accused ;;
    calibrate) "$python" -m farm calibrate --backend cuda --out runs/matrices ${ADDRESS:+--address "$ADDRESS"} ;;
    fill)  # the widest rows apart, few at once: outputs wait for their judges in shared memory
      module parts "$here/matrices/rms_norm.yaml" "$here/matrices/fused_add_rms_norm.yaml" --untimed \
        --select 'hidden=<32768' --seconds $((seconds * 3 / 5 - 20)) --out fill
      module parts "$here/matrices/rms_norm.yaml" "$here/matrices/fused_add_rms_norm.yaml" --untimed \
        --select hidden=32768 --at-once 3 --seconds $((seconds * 2 / 5 - 20)) --out fill32768 ;;
    matrices)
      farm run "$here/matrices/rms_norm.yaml" "$here/matrices/fused_add_rms_norm.yaml" --backend cuda --run-id matrices \
        --out runs/matrices ${ADDRESS:+--address "$ADDRESS"} ${SELECT:+--select "$SELECT"} > matrices.txt
      code=$?
      cat matrices.txt
      tell 'accounted for' matrices.txt
      exit $code ;;
    hardware) pytests "$here/tests/hardware" --ignore "$here/tests/hardware/test_two_nodes.py" ;;
    timers)
      module timers --ops fused_add_rms_norm --warm 8 --budget $((seconds - 12)) --out .
      code=$?
      tell '^all:' timers.txt
      exit $code ;;
    repeat)
      module timers --repeat 12 --providers farm torch --warm 0 --max-seconds 0.08 --budget $((seconds - 8)) --out .
      code=$?
      tell '90th percentile of the robust' repeat.txt
      exit $code ;;
    telemetry)
      module telemetry --budget $((seconds - 8)) --out .
      code=$?
      tell 'mean of.*rotating_graph' telemetry.txt
      exit $code ;;
    plain)
      module kernels --ops rms_norm --operations backward --cells '*/fp32/*' '*/fp16/4096x16384' --warm 8 \
        --budget $((seconds - 8)) --out plain
      code=$?
      tell 'geometric mean\|not reached' plain/kernels.txt
      exit $code ;;
    wide)
      code=0
      for cells in hidden=32768 hidden=16384,operation=full; do
        farm run "$here/matrices/rms_norm_float32_wide.yaml" --backend cuda --address inline --devices 1 --no-page \
          --select "$cells" --run-id "wide-${cells//[=,]/-}" --out runs/wide || code=$?
      done
      exit $code ;;
    ring) module ring_check --only check --sample 4 --seconds $((seconds - 15)) --out ring.json ;;
    bitwise)
      module bitwise --modes auto --shapes 520x32768 520x131072 300x4097 2000x129 --jobs 4 --budget $((seconds - 8)) ;;
    counters) module counters --seconds $((seconds - 10)) --out . ;;
    split) module split_check --only check --sample 5 --seconds $((seconds - 10)) --out split.json ;;
    tune)  # TASKS: of what; the kernels of split.py and the backward ring, and beside them what the table has
      rm -f tune.json
      # shellcheck disable=SC2086  # names without spaces
      module tune --kernels forward_split,backward_split,backward_ring --workers 15 --no-roofs \
        --seconds $((seconds - 25)) --out tune.json --tasks ${TASKS:-$WIDE_TASKS}
      code=$?
      [ -s tune.json ] || exit $code
      mkdir -p tuned && cp -r "$here/farm" "$here/kernels" "$here/benchmarks" tuned/ || exit
      module tune --table tune.json --keep --measured "${MEASURED:-NVIDIA H200}" > tuned.py || exit
      cp tuned.py tuned/kernels/ops/rms_norm/gpu/tuned.py
      echo "= what was found is in tuned.py"
      exit $code ;;
    cells) kernels_table cells "$seconds" ${CELLS:-'*/bf16/8192x131072' 'fused*/backward/fp32/4096x16384'} ;;
    widecells) kernels_table widecells "$seconds" '*/bf16/16384x32768' '*/bf16/8192x32768' ;;
    confirm)  # CONFIRM: which cells; those in doubt
      tuned_tree
      # shellcheck disable=SC2086  # patterns without spaces
      module confirm "$at/cells/kernels.json" --budget $((seconds - 8)) --out "$at/cells" ${CONFIRM:+--cells $CONFIRM}
      code=$?
      tell 'confirmed slower' "$at/cells/confirm.txt"
      exit $code ;;
    upstream) module upstream ;;
  esac
)

# ---- how they are run --------------------------------------------------------------------------------------------------

if [ "${1:-}" = --step ]; then  # by `step` below, under its limit
  cd "$4" || exit
  export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"
  run_step "$2" "$3"
  exit
fi

[ $# -ge 2 ] || { sed -n '2,/^set -u/{/^#/p}' "$0" | cut -c3- >&2; exit 2; }
mkdir -p "$1" || exit 2
out=$(cd "$1" && pwd) work=${WORK:-$(mktemp -d /tmp/gpu_all.XXXXXX)}
shift
case $1 in
  one) set -- doctor smoke nodes hardware -- timers wide ;;
  two) set -- accused repeat -- plain calibrate fill matrices ;;
  three) set -- telemetry counters ring bitwise -- split tune cells confirm ;;
esac
for name in "$@"; do
  if [ "$name" != -- ] && [ "$(limit_of "$name")" = 0 ]; then
    echo "gpu_all.sh: there is no step \"$name\"" >&2
    exit 2
  fi
done
end=$((SECONDS + ${TOTAL_S:-560}))
gpus=$(nvidia-smi -L | grep -c '^GPU ')
mkdir -p "$work"
nvidia-smi --query-gpu=index,uuid,name,power.limit,driver_version --format=csv | tee "$out/table.txt"
printf '%-13s %-4s %5s %5s  %s\n' step gpus code s said | tee -a "$out/table.txt"

sweep() {  # whatever a step started, wherever it went: nothing of it may be on a device beside the next one
  local file
  for file in $(grep -lzs "^GPU_ALL_STEP=$1\$" /proc/[0-9]*/environ); do
    file=${file#/proc/}
    kill -9 "${file%/environ}" 2> /dev/null
  done
}

step() {  # NAME GPUS
  local name=$1 mask=$2 limit left begun=$SECONDS code=- said="left out: the time is up"
  limit=$(limit_of "$name") left=$((end - SECONDS - 10))
  [ "$limit" -le "$left" ] || limit=$left
  if [ "$name" = split ] && [ ! -e "$here/benchmarks/split_check.py" ]; then
    said="left out: there is no benchmarks/split_check.py"
  elif [ "$limit" -ge "${LEAST_S:-35}" ]; then
    (
      export GPU_ALL_STEP="$name-$$"
      [ "$mask" = all ] || export CUDA_VISIBLE_DEVICES=$mask
      exec timeout -k 8 "$limit" bash "$here/benchmarks/gpu_all.sh" --step "$name" "$limit" "$work"
    ) > "$work/$name.log" 2>&1 &
    wait $!  # and not in the foreground, where a signal to this script would wait for the step's end
    code=$?
    sweep "$name-$$"
    said=$(grep -a '^= ' "$work/$name.log" | tail -1 | cut -c3-)
    [ "$said" ] || said=$(grep -av '^ *$' "$work/$name.log" | tail -1)
    [ "$code" != 124 ] && [ "$code" != 137 ] || said="cut off after $limit s; last: $said"
  fi
  printf '%-13s %-4s %5s %5s  %s\n' "$name" "$mask" "$code" $((SECONDS - begun)) "${said:0:160}" | tee -a "$out/table.txt"
}

lane() { local gpu=$1; shift; for name in "$@"; do step "$name" "$gpu"; done; }
lanes() {  # the steps of $first and $second, one GPU each; on a host with one GPU one after the other
  local one
  # shellcheck disable=SC2086  # names without spaces
  if [ "$gpus" -ge 2 ]; then
    lane 0 $first & one=$!
    lane 1 $second & both="$one $!"
    wait $both
    both=
  else
    lane 0 $first $second
  fi
  first='' second='' after=''
}

keep() {  # what there is so far, in few files, each there at once or not at all
  local new=$work.$BASHPID name
  cd "$work" || return
  [ ! -e runs/matrices/pages/run-matrices.html ] || cp runs/matrices/pages/run-matrices.html "$out/"
  tar czf "$new.reports" --exclude=./runs --exclude=./tuned --exclude='./fill*/part-*' --exclude='*/locks' . 2> /dev/null
  [ ! -d runs ] || tar czf "$new.runs" --exclude='*/locks' --exclude='runs/accused/*journal.jsonl' runs 2> /dev/null
  for name in reports runs; do
    [ ! -e "$new.$name" ] || { mv "$new.$name" "$out/.$name.tgz" && mv "$out/.$name.tgz" "$out/$name.tgz"; }
  done
}
(while sleep "${KEEP_S:-20}"; do keep; done) > /dev/null 2>&1 &
keeper=$! both=
finish() {  # whoever ends this script ends its steps too
  # shellcheck disable=SC2086
  kill $keeper $both 2> /dev/null
  wait $keeper 2> /dev/null
  sweep ".*-$$"
  keep
}
trap finish EXIT
trap 'exit 143' TERM INT HUP

first='' second='' after=''
for name in "$@"; do
  if [ "$name" = -- ]; then
    after=1
  elif uses_all "$name"; then
    [ -z "$first$second" ] || lanes
    step "$name" all
  elif [ "$after" ]; then
    second="$second $name"
  else
    first="$first $name"
  fi
done
[ -z "$first$second" ] || lanes
echo
cat "$out/table.txt"
