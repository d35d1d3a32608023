#!/usr/bin/env bash
# What is proven of our kernels on a GPU host, in one go:  benchmarks/gpu_kernels.sh OUT
#   1. our kernels against every peer that is importable, and the roof         OUT/kernels.{json,txt,md}
#   2. the tables of the four pull requests as matrices                        OUT/store
#   3. the same bits twice and in another process
#   4. five rounds of fresh processes for the cells in doubt                   OUT/confirm.{json,txt,md}
# Needs torch and triton importable by python3; seconds for 1 to 4 in KERNELS_S, MATRICES_S, BITWISE_S, CONFIRM_S.
set -u
out=$1 python=${PYTHON:-python3}
export PYTHONUNBUFFERED=1
mkdir -p "$out"
nvidia-smi --query-gpu=index,uuid,name,power.limit,driver_version --format=csv

"$python" -m benchmarks.kernels --budget "${KERNELS_S:-540}" --warm 12 --out "$out" > "$out/kernels.log" 2>&1
grep "geometric\|under 0.96\|miss a bar\|<-" "$out/kernels.txt" | cut -c1-160

timeout "${MATRICES_S:-300}" "$python" -m farm run matrices/rms_norm_modes.yaml matrices/rms_norm_qwen3.yaml \
  matrices/fused_add_rms_norm_float32.yaml matrices/rms_norm_float32_wide.yaml \
  --backend cuda --address inline --out "$out/store" 2>&1 | tail -12 | cut -c1-220

timeout "${BITWISE_S:-240}" "$python" -m benchmarks.bitwise --budget "${BITWISE_S:-240}" 2>&1 | tail -4

timeout "${CONFIRM_S:-540}" "$python" -m benchmarks.confirm "$out/kernels.json" --budget "${CONFIRM_S:-540}" \
  ${CELLS:+--cells $CELLS} --out "$out" 2>&1 | tail -40 | cut -c1-170
