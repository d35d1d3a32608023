#!/usr/bin/env bash
# What is proven of the farm's own numbers on a GPU host, in one go:  benchmarks/gpu_truth.sh OUT
#   1. the device's roof                                                       OUT/store/calibrations
#   2. rotating_graph and events against the profiler                          OUT/timers.{json,txt,md}
#   3. medians of the same cells over twelve fresh processes                   OUT/repeat.{json,txt,md}
#   4. wrong kernels, all caught                                               OUT/mutants.{json,txt}
#   5. right kernels, none accused, every input family                         OUT/accused/parts.{json,txt}
#   6. cheats, telemetry, memory, faults                                       OUT/hardware.txt
# Needs torch and triton importable by python3, pytest for 6; seconds for 2 to 6 in TIMERS_S, REPEAT_S, MUTANTS_S,
# ACCUSED_S, HARDWARE_S (0 leaves a part out).
set -u
out=$1 python=${PYTHON:-python3}
export PYTHONUNBUFFERED=1
mkdir -p "$out"
nvidia-smi --query-gpu=index,uuid,name,power.limit,driver_version --format=csv

timeout 100 "$python" -m farm calibrate --backend cuda --address inline --out "$out/store" 2>&1 | tail -30

[ "${TIMERS_S:-240}" = 0 ] || "$python" -m benchmarks.timers --budget "${TIMERS_S:-240}" --out "$out" > "$out/timers.log" 2>&1
[ -e "$out/timers.txt" ] && tail -8 "$out/timers.txt" | cut -c1-170

[ "${REPEAT_S:-200}" = 0 ] || "$python" -m benchmarks.timers --repeat 12 --providers ${PROVIDERS:-farm torch} --warm 0 \
  --max-seconds 0.08 --budget "${REPEAT_S:-200}" --out "$out" > "$out/repeat.log" 2>&1
[ -e "$out/repeat.txt" ] && tail -28 "$out/repeat.txt" | cut -c1-150

[ "${MUTANTS_S:-120}" = 0 ] || "$python" -m benchmarks.mutants --device cuda --budget "${MUTANTS_S:-120}" --out "$out" 2>&1 |
  tail -6 | cut -c1-170

[ "${ACCUSED_S:-600}" = 0 ] || "$python" -m benchmarks.parts matrices/no_false_accusation.yaml --seconds "${ACCUSED_S:-600}" \
  --out "$out/accused" 2>&1 | tail -30 | cut -c1-220

[ "${HARDWARE_S:-200}" = 0 ] || timeout "${HARDWARE_S:-200}" "$python" -m pytest -q -s -p no:cacheprovider tests/hardware \
  > "$out/hardware.txt" 2>&1
[ -e "$out/hardware.txt" ] && tail -8 "$out/hardware.txt" | cut -c1-220
true
