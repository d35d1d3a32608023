"""Ascend: what a compiled kernel takes of a vector core, from the plan that bishengir makes of it.

Runs in the tool chain's own environment (`ascend_environment`): triton-ascend lowers a kernel to linalg, and
`bishengir-compile` of ascendnpu-ir from there to HIVM, buffers placed and pipelines synchronised.  What would make the
binary of that, `hivmc`, belongs to CANN; a stand-in that does nothing takes its place, so that the exit code is of what
went before.

A plan that overflows the Unified Buffer is a result like any other; whatever else the compiler refuses is Triton's
MLIRCompilationError, with its words.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import math
import os
import re
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from farm.compile.offline import OfflineDriver
from farm.compile.offline import offline as triton_offline
from farm.compile.targets import TARGETS, CompileTarget
from farm.errors import FarmSignal

#: Counted up when a plan of the same kernel would say something else: Triton's cache keeps plans.
PLAN = 2
PLAN_SECONDS = 300.0
#: triton-adapter-opt of triton-ascend 3.2.0 dies of a signal in about 1 of 100 runs on a text that it lowers, always
#: alike, in the others (9 of 800 measured, with threads or without).  What dies so often in a row is no accident.
ATTEMPTS = 4
#: A dimension that the compiler does not know is taken for this many elements.
UNKNOWN_DIMENSION = 1024

#: Options of a kernel that triton-ascend hands on where they are set, under the compiler's own names.
_HANDED_ON = {
    "multibuffer": "enable-auto-multi-buffer",
    "enable_auto_bind_sub_block": "enable-auto-bind-sub-block",
    "enable_hivm_auto_cv_balance": "enable-hivm-auto-cv-balance",
    "sync_solver": "enable-hivm-graph-sync-solver",
    "unit_flag": "enable-hivm-unit-flag-sync",
    "inject_barrier_all": "enable-hivm-inject-barrier-all-sync",
    "inject_block_all": "enable-hivm-inject-block-all-sync",
    "limit_auto_multi_buffer_only_for_local_buffer": "limit-auto-multi-buffer-only-for-local-buffer",
    "limit_auto_multi_buffer_of_local_buffer": "limit-auto-multi-buffer-of-local-buffer",
    "set_workspace_multibuffer": "set-workspace-multibuffer",
    "tile_mix_vector_loop": "tile-mix-vector-loop",
    "tile_mix_cube_loop": "tile-mix-cube-loop",
    "disable_auto_inject_block_sync": "disable-auto-inject-block-sync",
}
_STAND_IN = '#!/bin/sh\ncase "$*" in *--version*) echo "hivmc 1.2.0";; esac\nexit 0\n'
_OVERFLOW = re.compile(r"ub overflow, requires (\d+) bits while (\d+) bits available")
_SCALAR = re.compile(
    r"memref\.(?P<op>load|store) [^\n]*?\[(?P<at>[^\]]*)\][^\n]*: memref<(?P<type>[^,>]*)[^\n]*"
    r"address_space<(?P<space>ub|gm)>"
)
_COPY = re.compile(r"call @(?P<op>load_gm_to_ubuf|store_ubuf_to_gm)_(?P<what>\w+?)\(")
_CALL = re.compile(r"\bcall @(\w+)\(")
_PLACE = re.compile(r'loc\("[^"]*":\d+:\d+\): |/[^\s:]+:\d+: ')
_LOCATION = re.compile(r" ?loc\((?:[^()]|\([^()]*\))*\)|^#loc\d* = .*$", re.M)
_FLAG = re.compile(r"hivm\.hir\.set_flag\[<PIPE_(\w+)>, <PIPE_(\w+)>")


T = TypeVar("T")


class PlanError(FarmSignal, RuntimeError):
    """The compiler refused a kernel, for another reason than the size of its buffers."""


@contextlib.contextmanager
def offline(target: CompileTarget = TARGETS["ascend910b"]) -> Iterator[OfflineDriver]:
    """Makes Triton compile for `target` down to the plan, and keeps every compiled kernel; see `farm.compile.offline`.

    ImportError where this Python has not got the tool chain.
    """
    backend, program = _tool_chain()
    saved = {name: backend.__dict__[name] for name in ("add_stages", "hash")}

    def add_stages(self: Any, stages: dict[str, Any], options: Any) -> None:
        saved["add_stages"](self, stages, options)
        lower = stages["ttadapter"]
        stages["ttadapter"] = lambda ttir, metadata: again(lambda: lower(ttir, metadata))
        stages["npubin"] = lambda linalg, metadata: _binary(program, target, linalg, metadata)

    def hash(self: Any) -> str:
        return f"{self.target}-plan{PLAN}-{_version('ascendnpu-ir')}"

    backend.add_stages, backend.hash = add_stages, hash
    try:
        with triton_offline(target) as driver:
            driver.utils = _Utils(target)  # type: ignore[assignment]
            yield driver
    finally:
        for name, value in saved.items():
            setattr(backend, name, value)


def resources(kernel: Any) -> dict[str, Any]:
    """What one compiled kernel takes:

    ub_bytes                what is planned of the Unified Buffer; None where it overflows
    ub_limit_bytes          what a vector core has
    ub_share                their ratio
    ub_overflow_bytes       what would be needed, where that is more than there is; else absent
    buffers, multi_buffered how many buffers are planned, and how many of them twice or more, to copy while computing
    scalar_accesses         single elements of the Unified Buffer that the scalar unit loads or stores, loops over
                            elements counted with their length
    flags, barriers, syncs  waits between pipelines, waits of one pipeline for itself, and both
    flag_pairs              flags by the two pipelines
    vector_calls            calls of the vector unit's library
    ir_bytes                size of the last text before the binary (there is no binary without CANN)
    code_digest             of that text, without places in the source
    instructions            copies between device memory and the Unified Buffer, by shape and type of the call
    """
    found: dict[str, Any] = json.loads(kernel.asm["npubin"])
    return found


class _Utils:
    """What triton-ascend asks of the runtime."""

    def __init__(self, target: CompileTarget):
        self._properties = {
            "max_shared_mem": target.block_memory,
            "num_aicore": target.cores // 2,
            "num_vectorcore": target.cores,
        }

    def get_device_properties(self, device: int) -> dict[str, int]:
        return self._properties

    def get_aicore_num(self) -> int:
        return self._properties["num_aicore"]

    def get_aivector_core_num(self) -> int:
        return self._properties["num_vectorcore"]

    def load_binary(self, *binary: Any) -> tuple[int, int, int, int]:
        return 1, 1, 0, 0


def _tool_chain() -> tuple[Any, Path]:
    """triton-ascend's compiler class, and bishengir-compile."""
    from triton.backends import backends

    spec = importlib.util.find_spec("ascendnpuir")
    if "ascend" not in backends or spec is None or spec.origin is None:
        lacking = "ascendnpu-ir" if "ascend" in backends else "triton-ascend"
        raise ImportError(f"this Python has no {lacking}; set up the tool chain with farm compile --setup ascend")
    return backends["ascend"].compiler, Path(spec.origin).parent / "bin" / "bishengir-compile"


def _version(distribution: str) -> str:
    from importlib.metadata import version

    return version(distribution)


def _binary(program: Path, target: CompileTarget, linalg: str, metadata: dict[str, Any]) -> bytes:
    """In the place of the binary, the report on it, as JSON."""
    from triton.backends.ascend.compiler import _parse_linalg_metadata

    linalg, _ = _parse_linalg_metadata(linalg, metadata)
    return json.dumps(plan(program, str(target.arch), target.block_memory, linalg, metadata)).encode()


def plan(program: Path, arch: str, limit: int, linalg: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """What bishengir plans for a kernel in linalg; `resources` says what is in it.  PlanError if it refuses."""
    with tempfile.TemporaryDirectory(prefix="farm-bishengir-") as name:
        folder = Path(name)
        (folder / "kernel.mlir").write_text(linalg, encoding="utf-8")
        stand_in = folder / "bin" / "hivmc"
        stand_in.parent.mkdir()
        stand_in.write_text(_STAND_IN, encoding="ascii")
        stand_in.chmod(0o755)
        given = [f"--{flag}={options[key]}" for key, flag in _HANDED_ON.items() if options.get(key) is not None]
        command = [
            str(program),
            "kernel.mlir",
            f"--target={arch}",
            *given,
            "--enable-hfusion-compile=true",
            "--enable-hivm-compile=true",
            "--enable-triton-kernel-compile=true",
            "--enable-memory-display",
            f"--save-temps={folder}",
            "-o",
            str(folder / "kernel.o"),
        ]
        paths = {**os.environ, "PATH": f"{stand_in.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}

        def compile() -> str:
            done = subprocess.run(
                command, cwd=folder, env=paths, capture_output=True, timeout=PLAN_SECONDS, check=False
            )
            said = (done.stderr + done.stdout).decode(errors="replace")
            if done.returncode and not _OVERFLOW.search(said):
                raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
            return said

        said = again(compile)
        overflow = _OVERFLOW.search(said)
        if overflow:
            return {
                "ub_bytes": None,
                "ub_overflow_bytes": -(-int(overflow[1]) // 8),
                "ub_limit_bytes": int(overflow[2]) // 8,
            }
        memory = [json.loads(f.read_text(encoding="utf-8")) for f in sorted(folder.glob("memory_info*.json"))]
        hivm = (folder / "module.hivm.opt.mlir").read_text(encoding="utf-8")
        digest = hashlib.sha256(_LOCATION.sub("", hivm).encode()).hexdigest()[:16]
        return {**buffers(memory, limit), **counts(hivm), "code_digest": digest}


def again(step: Callable[[], T]) -> T:
    """What a step of the tool chain gives; one that died of a signal is taken again.  PlanError, in one sentence, if
    its program fails or takes too long."""
    for left in reversed(range(ATTEMPTS)):
        try:
            return step()
        except subprocess.TimeoutExpired as error:
            raise PlanError(f"error: {Path(error.cmd[0]).name} took longer than {error.timeout:g} s") from None
        except subprocess.CalledProcessError as error:
            if error.returncode > 0 or not left:
                said = ((error.stderr or b"") + (error.output or b"")).decode(errors="replace")
                raise PlanError(refusal(Path(error.cmd[0]).name, error.returncode, said)) from None
    raise AssertionError("unreachable")


def refusal(program: str, code: int, said: str) -> str:
    """The compiler's own first words of what is wrong, without places in files that are gone."""
    lines = [_PLACE.sub("", line) for line in said.splitlines()]
    errors = [line for line in lines if re.search("error|assert", line, re.I) and "Failed to run BiSheng" not in line]
    try:
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    except ValueError:
        how = f"signal {-code}"
    return f"error: {program} ended with {how}: {' '.join(errors[:3]) or 'no reason reported'}"[:600]


def buffers(memory: list[dict[str, Any]], limit: int) -> dict[str, Any]:
    """Bytes and numbers of the buffers in bishengir's memory display (extents in bits, offsets in bytes); a buffer that
    is there twice has two offsets, and is listed once for each."""
    planned: dict[tuple[str, int], list[int]] = {}
    end = 0
    for record in (r for file in memory for r in file["Record"]):
        if record["scope"] != "ub" or record["status"] != "success":
            continue
        for buffer in record["memory_info_array"]:
            planned[buffer["buffer"], buffer["alloc_time_in_ir"]] = buffer["offset"]
            end = max([end, *(offset + -(-buffer["extent"] // 8) for offset in buffer["offset"])])
    return {
        "ub_bytes": end,
        "ub_limit_bytes": limit,
        "ub_share": round(end / limit, 4),
        "buffers": len(planned),
        "multi_buffered": sum(len(offsets) > 1 for offsets in planned.values()),
    }


def counts(hivm: str) -> dict[str, Any]:
    """Scalar accesses, waits, calls and copies in the last text before the binary."""
    flags = Counter(f"{a}->{b}" for a, b in _FLAG.findall(hivm))
    barriers = hivm.count("hivm.hir.pipe_barrier[")
    copies: dict[str, Counter[str]] = {"load_gm_to_ubuf": Counter(), "store_ubuf_to_gm": Counter()}
    for copy in _COPY.finditer(hivm):
        copies[copy["op"]][copy["what"]] += 1
    scalar = 0
    for access in _SCALAR.finditer(hivm):
        if access["space"] == "ub":
            scalar += _elements(access["at"], access["type"])
        else:
            copies["load_gm_to_ubuf" if access["op"] == "load" else "store_ubuf_to_gm"]["scalar"] += 1
    return {
        "scalar_accesses": scalar,
        "flags": sum(flags.values()),
        "barriers": barriers,
        "syncs": sum(flags.values()) + barriers,
        "flag_pairs": dict(sorted(flags.items())),
        "vector_calls": sum(not name.startswith(tuple(copies)) for name in _CALL.findall(hivm)),
        "ir_bytes": len(hivm),
        "instructions": {
            "counted_in": "hivm",
            "global_loads": dict(sorted(copies["load_gm_to_ubuf"].items())),
            "global_stores": dict(sorted(copies["store_ubuf_to_gm"].items())),
            "async_copies": {},
            "local_loads": {},
            "local_stores": {},
        },
    }


def _elements(subscript: str, shape: str) -> int:
    """How many elements one access in the text stands for: those of every dimension whose index is no constant, since
    only a loop over elements gives it another."""
    dims = re.findall(r"(\d+|\?)x", shape)
    indices = [i.strip() for i in subscript.split(",")] if subscript.strip() else []
    known = [UNKNOWN_DIMENSION if d == "?" else int(d) for d in dims]
    return math.prod(d for d, i in zip(known, indices) if not re.fullmatch(r"%c\d+(_\d+)?", i))
