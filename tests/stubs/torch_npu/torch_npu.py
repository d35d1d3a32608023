"""A stub of torch_npu as it is where CANN's libraries are not: it cannot be imported.

What the loader says then is documented in the vendor's "Ascend Extension for PyTorch" guides (hiascend.com, FAQ: a
missing libhccl.so, "source set_env.sh").  FARM_STUB_TORCH_NPU_WHY says something else instead.
"""

from __future__ import annotations

import os

raise ImportError(
    os.environ.get("FARM_STUB_TORCH_NPU_WHY", "libhccl.so: cannot open shared object file: No such file or directory")
)
