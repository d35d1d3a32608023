"""What a child does once in its life, done before its first cell comes: Triton hashes its own files, and the device's
library loads the kernels that checks are made of, each at its first use.

Both took tenths of a second of the first cell's compile and check phases, while the child had waited for inputs.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from typing import Any

_naming: list[threading.Thread] = []


def name_tool_chain() -> None:
    """Begin to have Triton hash itself, for the names of kernels in its cache: half a gigabyte of files, which it reads
    once in each process.  In a thread, since meanwhile the device is opened; `settle` waits for it."""
    thread = threading.Thread(target=_name, name="tool chain", daemon=True)
    thread.start()
    _naming.append(thread)


def _name() -> None:
    with contextlib.suppress(Exception):  # of a Triton that does it in another way: its first cell pays
        from triton.runtime import cache

        if hasattr(cache, "triton_key"):
            cache.triton_key()
            return
        from triton.compiler import compiler

        compiler.triton_key()


def settle() -> None:
    """Wait for what was begun: no thread of the farm's is left beside the code under test, or where a process forks."""
    while _naming:
        _naming.pop().join()


def compiler(backend: str) -> None:
    """Have Triton load its compiler, by a kernel for some target of the backend's family, whose code nobody keeps: the
    first compilation of a process takes several times as long as the next.  For one that opens no device; raises
    nothing."""
    family, arch, warp = ("hip", "gfx942", 64) if backend == "rocm" else ("cuda", 90, 32)
    before = os.environ.get("TRITON_CACHE_DIR")
    with contextlib.suppress(Exception), tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        try:
            import triton
            from triton.backends.compiler import GPUTarget
            from triton.compiler import ASTSource

            from farm.child.small_kernel import small

            signature = {"X": "*fp32", "Y": "*fp32", "n": "i32", "BLOCK": "constexpr"}
            source = ASTSource(fn=small, signature=signature, constexprs={"BLOCK": 128})
            triton.compile(source, target=GPUTarget(family, arch, warp))
        finally:
            os.environ.pop("TRITON_CACHE_DIR")
            os.environ.update({} if before is None else {"TRITON_CACHE_DIR": before})


def checks(session: Any) -> None:
    """Have the session's device load what checked calls are made of, by two calls of a function that copies.  Raises
    nothing: what is wrong with the device will show where it is looked for."""
    import torch

    from farm.child import provider_call, tensor_files
    from farm.child.checked_calls import CheckedCalls

    device = session.device

    def copies(x: Any) -> Any:
        return torch.empty_like(x).copy_(x)

    def synchronize() -> None:
        if device.type != "cpu":
            torch.get_device_module(device.type).synchronize(device)

    with contextlib.suppress(Exception):
        for name in ("float32", "bfloat16", "float16"):
            plan = {"name": "x", "dtype": name, "shape": [64, 64], "role": "input"}
            plans = [plan, {**plan, "name": "y", "role": "output"}]
            x = torch.ones((64, 64), dtype=tensor_files.DTYPES[name]).to(device)
            problem = provider_call.Problem([x.clone()], [], [], "no-grad-forward")
            calls = CheckedCalls(device, plans, problem, lambda plan, x=x: x, synchronize)  # type: ignore[misc]
            calls.first(copies)
            calls.others(copies, stranger=False)
            x.cpu()
        synchronize()
