#!/usr/bin/env bash
# What a host with two NVIDIA GPUs proves of clusters, in one go:  benchmarks/gpu_cluster.sh OUT
#   1. what the farm says of the devices: identity, complaints, the doctor      OUT/identity.txt, OUT/doctor.txt
#   2. one matrix over both GPUs through a Ray of the run's own                 OUT/store/runs/both
#   3. two Ray nodes with an environment each, one killed in the middle         OUT/two_nodes.txt
#   4. the other hardware tests                                                 OUT/hardware.txt
# Needs torch, triton, ray and pytest importable by python3; seconds for 2 to 4 in BOTH_S, NODES_S, HARDWARE_S (0 leaves a
# part out).
set -u
out=$1 python=${PYTHON:-python3}
export PYTHONUNBUFFERED=1
mkdir -p "$out"

"$python" - > "$out/identity.txt" 2>&1 <<'PY'
from farm.backends import cuda

for device in cuda.detect():
    print(device, cuda.identity(device.id, {}))
print("complaints:", cuda.complaints() or "none")
PY
cat "$out/identity.txt"
timeout 120 "$python" -m farm doctor --backend cuda > "$out/doctor.txt" 2>&1
echo "doctor: exit code $?"
grep -E '^(fail|warn)' "$out/doctor.txt"

[ "${BOTH_S:-120}" = 0 ] || timeout "${BOTH_S:-120}" "$python" -m farm run matrices/smoke.yaml --backend cuda --run-id both \
  --no-page --out "$out/store" 2>&1 | grep -v done, | tail -8 | cut -c1-220

[ "${NODES_S:-240}" = 0 ] || timeout "${NODES_S:-240}" "$python" -m pytest -q -s -p no:cacheprovider \
  tests/hardware/test_two_nodes.py > "$out/two_nodes.txt" 2>&1
[ -e "$out/two_nodes.txt" ] && tail -8 "$out/two_nodes.txt" | cut -c1-220

[ "${HARDWARE_S:-200}" = 0 ] || timeout "${HARDWARE_S:-200}" "$python" -m pytest -q -s -p no:cacheprovider tests/hardware \
  --ignore tests/hardware/test_two_nodes.py > "$out/hardware.txt" 2>&1
[ -e "$out/hardware.txt" ] && tail -8 "$out/hardware.txt" | cut -c1-220
true
