"""NVIDIA: what a compiled kernel takes of a multiprocessor, from the binary itself."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from farm.compile import instructions
from farm.compile.offline import code, offline
from farm.compile.targets import TARGETS

__all__ = ["disassemble", "occupancy", "offline", "parse_usage", "resources"]

TOOL_SECONDS = 60.0
REGISTERS = 65536  # of one multiprocessor, of every compute capability here
#: (warps, blocks) that one multiprocessor holds, by compute capability (CUDA C++ programming guide, technical
#: specifications; Blackwell tuning guide).
HOLDS = {80: (64, 32), 86: (48, 16), 89: (48, 24), 90: (64, 32), 100: (64, 32), 103: (64, 32), 120: (48, 24)}
RESERVED = 1024  # bytes of shared memory that the system takes for itself in each block
_USAGE = re.compile(
    r"Function (?P<name>[^:\s]+):\s*REG:(?P<reg>\d+) STACK:(?P<stack>\d+) SHARED:(?P<shared>\d+) "
    r"LOCAL:(?P<local>\d+)"
)


def resources(kernel: Any, machine_code: bool = False) -> dict[str, Any]:
    """Registers, spills, shared memory, occupancy and instruction counts of one compiled kernel.

    Spills are the loads and stores of local memory in the machine code: what ptxas reports as spill bytes, but of the
    binary that would run.  Other instructions are counted in the PTX, or with `machine_code` in the SASS, which takes
    0.4 s a kernel.
    """
    cubin: bytes = kernel.asm["cubin"]
    arch = int(kernel.metadata.target.arch)
    usage = parse_usage(_tool("cuobjdump", cubin, "-res-usage"), RESERVED if arch >= 90 else 0)
    read = machine_code or usage["stack"] or usage["local"]
    local = instructions.sass(disassemble(cubin) if read else "")
    dynamic, warps = int(kernel.metadata.shared), int(kernel.metadata.num_warps)
    shared = usage["shared"] + dynamic
    counted = local if machine_code else instructions.ptx(kernel.asm["ptx"])
    size, digest = code(cubin)
    return {
        "registers": usage["reg"],
        "spill_store_bytes": instructions.local_bytes(local, "local_stores"),
        "spill_load_bytes": instructions.local_bytes(local, "local_loads"),
        "stack_bytes": usage["stack"],
        "shared_bytes": shared,
        "shared_static_bytes": usage["shared"],
        "shared_dynamic_bytes": dynamic,
        "warps": warps,
        **occupancy(arch, usage["reg"], shared, warps),
        "binary_bytes": len(cubin),
        "code_bytes": size,
        "code_digest": digest,
        "instructions": {**counted, "local_loads": local["local_loads"], "local_stores": local["local_stores"]},
    }


def occupancy(arch: int, registers: int, shared: int, warps: int) -> dict[str, Any]:
    """How many blocks of `warps` warps a multiprocessor of `arch` (90) holds, the share of its warps that are then at
    work, and what stops the next block.  `registers` a thread, `shared` bytes a block.

    Registers are handed out by 256 a warp, from the quarter of the file that the warp's scheduler owns; shared memory
    by 128 bytes (CUDA occupancy calculator).
    """
    per_warp = -(-registers * 32 // 256) * 256
    most_warps, most_blocks = HOLDS[arch]
    limits = {
        "registers": 4 * (REGISTERS // 4 // per_warp) // warps if per_warp else most_blocks,
        "shared memory": TARGETS[f"sm_{arch}"].core_memory // (-(-(shared + RESERVED) // 128) * 128),
        "warps": most_warps // warps,
        "blocks": most_blocks,
    }
    blocks = min(limits.values())
    full = blocks * warps == most_warps
    return {
        "blocks_per_core": blocks,
        "occupancy": blocks * warps / most_warps,
        "limiter": "" if full else min(limits, key=lambda name: limits[name]),
    }


def parse_usage(text: str, reserved: int = RESERVED) -> dict[str, int]:
    """`cuobjdump -res-usage` as {"reg", "stack", "shared", "local"}: the entry's, with the deepest stack of all.

    From 9.0 on it counts the system's own 1,024 bytes as shared memory of every kernel that has any, while `ptxas -v`
    does not: 16 bytes of static memory are told as 1,040 (seen with 12.9 and 13.1; not of
    8.x).  They are taken off here, as `reserved`.
    """
    rows = [{k: int(v) for k, v in m.groupdict().items() if k != "name"} for m in _USAGE.finditer(text)]
    if not rows:
        raise ValueError(f"cuobjdump reports no resource usage: {text[:200]!r}")
    found = {key: max(row[key] for row in rows) for key in ("reg", "stack", "shared", "local")}
    return {**found, "shared": max(0, found["shared"] - reserved)}


def disassemble(cubin: bytes) -> str:
    """The machine code as text (SASS).  Takes about 0.4 s whatever its length."""
    return _tool("nvdisasm", cubin, "-c")


def _tool_path(name: str) -> str:
    try:
        from triton import knobs
    except ImportError:  # before 3.4
        from triton.backends.nvidia.compiler import _path_to_binary

        return str(_path_to_binary(name)[0])
    return str(getattr(knobs.nvidia, name).path)


def _tool(name: str, cubin: bytes, *options: str) -> str:
    """What one of the tools that Triton brings says of a cubin."""
    path = _tool_path(name)
    with tempfile.TemporaryDirectory(prefix="farm-cubin-") as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(cubin)
        done = subprocess.run(
            [path, *options, str(file)], capture_output=True, text=True, timeout=TOOL_SECONDS, check=False
        )
    if done.returncode:
        raise RuntimeError(f"{name} failed with exit code {done.returncode}: {done.stderr.strip()[:200]}")
    return done.stdout + (done.stderr if name == "cuobjdump" else "")
