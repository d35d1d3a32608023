#!/usr/bin/env bash
# What is proven on a GPU host, in one go:  benchmarks/gpu_check.sh STORE one|two|changes|hardware|attention
#   one   make run on the GPU, the hardware tests, the reference matrix
#   two   the reference matrix on both GPUs (fills caches), then on one, then on both, and cells per second of each
#   changes   what has changed since a GPU was last there: confined children, unfriendly inputs, new ops, the norms under
#             torch.compile, the host's time for an eager call; without Ray
#   attention  which of torch's attention kernels is wrong for strided or misaligned tensors, and 143 cells beside it
#   hardware  the hardware tests of one GPU, without Ray; 7 minutes
# Needs torch, triton and (for one, two) ray importable by python3; prints a table last.  Takes 3 to 6 minutes.
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
elif [ "$what" = changes ]; then
  export FARM_ADDRESS=inline
  "$python" -m farm doctor 2>&1 | grep -i -A2 confine
  "$python" - <<'EOF'
import time

import torch
import torch.nn.functional as F

from kernels import RMSNorm, fused_add_rms_norm, rms_norm

x, r, w = (torch.randn(*s, device="cuda", dtype=torch.bfloat16) for s in ((64, 4096), (64, 4096), (4096,)))
both = lambda x, r, w: (rms_norm(x, w), *fused_add_rms_norm(x, r, w))
compiled = torch.compile(both, fullgraph=True)
print("compiled = eager, bit for bit:", all(torch.equal(a, b) for a, b in zip(compiled(x, r, w), both(x, r, w))))
x.requires_grad_()
(rms_norm(x, w).mul_(2)).sum().backward()
print("module as torch's:", torch.allclose(RMSNorm(4096).cuda().bfloat16()(x), F.rms_norm(x, (4096,)), rtol=2e-2))
one = torch.randn(1, 4096, device="cuda", dtype=torch.bfloat16)
for name, call in (("ours", lambda: rms_norm(one, w)), ("torch", lambda: F.rms_norm(one, (4096,), w, 1e-6))):
    times = []
    for _ in range(2000):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    torch.cuda.synchronize()
    print(f"host time of an eager call, 1x4096: {name} {sorted(times)[1000] * 1e6:.1f} us")
EOF
  farm run matrices/smoke.yaml --backend cuda --out "$store" --no-page
  farm run matrices/unfriendly.yaml --backend cuda --out "$store" --no-page
  farm run matrices/{softmax,layer_norm,swiglu,rope,cross_entropy,attention}.yaml --backend cuda --out "$store" --no-page
elif [ "$what" = attention ]; then
  "$python" -m pytest -q -s tests/hardware/test_cuda_attention.py 2>&1 | tail -40 | cut -c1-160
  farm run matrices/no_false_accusation.yaml --strict-peers --backend cuda --address inline --out "$store" --no-page \
    --select 'op=layer_norm|cross_entropy|attention,seed=0'
elif [ "$what" = hardware ]; then
  "$python" -m pytest -q -m "cuda and not ray" tests/hardware 2>&1 | tail -15 | cut -c1-220
else
  farm run matrices/rms_norm.yaml --backend cuda --out "$store" --select "${cells:-$peers}"
  farm run matrices/rms_norm.yaml --backend cuda --out "$store" --devices 1 --select "${cells:-$peers}" --run-id zz-1-device
  farm run matrices/rms_norm.yaml --backend cuda --out "$store" --select "${cells:-$peers}" --run-id zz-2-devices
  "$python" -m benchmarks.throughput "$store" zz-1-device zz-2-devices
fi
for run in $(ls "$store/runs" | grep -v zz-); do "$python" -m farm export table "$run" --out "$store" --unit us | cut -c1-240; done
