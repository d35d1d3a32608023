#!/usr/bin/env bash
# What is proven on a GPU host, in one go:  benchmarks/gpu_check.sh STORE one|two
#   one   make run on the GPU, the hardware tests, the reference matrix
#   two   the reference matrix on both GPUs (fills caches), then on one, then on both, and cells per second of each
# Needs torch, triton and ray importable by python3; prints a table last.  Takes 3 to 6 minutes.
set -u
store=$1 what=$2 python=${PYTHON:-python3}
peers='provider=farm|torch|torch_compile|liger'
export PYTHONUNBUFFERED=1 FARM_ADDRESS=local  # through Ray, as on a cluster
farm() { "$python" -m farm "$@" 2>&1 | tail -"${lines:-7}" | cut -c1-220; }

nvidia-smi --query-gpu=index,uuid,name,power.limit,driver_version --format=csv
if [ "$what" = one ]; then
  make run PYTHON="$python" 2>&1 | tail -8
  "$python" -m pytest -q tests/hardware 2>&1 | tail -15 | cut -c1-220
  farm run matrices/timing_policies.yaml --backend cuda --out "$store"
  farm run matrices/rms_norm.yaml --backend cuda --out "$store" --select "$peers"
  farm run matrices/matmul.yaml matrices/rms_norm_quantize.yaml --backend cuda --out "$store"
else
  farm run matrices/rms_norm.yaml --backend cuda --out "$store" --select "${cells:-$peers}"
  farm run matrices/rms_norm.yaml --backend cuda --out "$store" --devices 1 --select "${cells:-$peers}" --run-id zz-1-device
  farm run matrices/rms_norm.yaml --backend cuda --out "$store" --select "${cells:-$peers}" --run-id zz-2-devices
  "$python" -m benchmarks.throughput "$store" zz-1-device zz-2-devices
fi
for run in $(ls "$store/runs" | grep -v zz-); do "$python" -m benchmarks.show "$store" "$run" | cut -c1-175; done
