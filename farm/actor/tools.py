"""The vendors' tools that a child may run under: a profiler, or a checker of memory accesses.  Pure but for `found`.

A tool prints what it likes on its standard output, which would be the child's private pipe.  So it is started with the
log in place of both, and hands the pipe on to the child as two more descriptors (`under`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from farm import limits
from farm.errors import Message

#: Where a child's tool writes: a file or a folder, in the folder of the run's tensors or in the one that is named.
OUTPUT = "{out}/tool-{name}"
#: So long a child that runs under a tool may take to leave: the tool writes at the end what it has seen.
LEAVE_SECONDS = 120.0
#: So many times longer everything may take.
SLOWER = 10.0
_SLOWED = ("spawn", "import", "compile", "check", "teardown")
_SECTIONS = ("SpeedOfLight", "LaunchStats", "Occupancy")
_METRICS = (
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "gpu__time_duration.sum",
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct",
)


@dataclass(frozen=True)
class Tool:
    """`program`: its name; `words`: what follows, before the words of the child; `OUTPUT` stands for the child's own.
     `backend`: whose devices it knows.  `profiles`: whether it measures one call, not checks all.
    `places`: folders where it may be besides PATH.  `package`: what brings it.  `variables`: of the child."""

    name: str
    program: str
    backend: str
    words: tuple[str, ...]
    profiles: bool
    package: str
    places: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


def _sanitizer(name: str) -> Tool:
    return Tool(
        name,
        "compute-sanitizer",
        "cuda",
        ("--tool", name, "--log-file", OUTPUT, "--report-api-errors", "no", "--show-backtrace", "no")
        + ("--print-limit", "100", "--target-processes", "all"),
        False,
        "the CUDA toolkit, or the conda package cuda-sanitizer-api",
        ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer"),
        # torch's allocator would hand out parts of what it has: a store into a neighbour is in bounds then
        {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    )


def _amd(number: int, counters: Sequence[str]) -> Tool:
    words = ("--pmc", *counters, "--marker-trace", "--selected-regions", "--output-format", "csv")
    return Tool(
        f"rocprofv3-{number}",
        "rocprofv3",
        "rocm",
        (*words, "-d", OUTPUT, "-o", "farm", "--"),
        True,
        "ROCm (package rocprofiler-sdk)",
        ("/opt/rocm/bin",),
    )


def _ascend(number: int, metrics: str) -> Tool:
    return Tool(
        f"msprof-{number}",
        "msprof",
        "ascend",
        (f"--output={OUTPUT}", f"--aic-metrics={metrics}", "--task-time=l1", "--ai-core=on"),
        True,
        "the CANN toolkit (source its set_env.sh)",
        ("/usr/local/Ascend/ascend-toolkit/latest/bin", "/usr/local/Ascend/ascend-toolkit/latest/tools/profiler/bin"),
    )


_NCU = Tool(
    "ncu",
    "ncu",
    "cuda",
    ("--profile-from-start", "off", "--target-processes", "all", "--csv", "--page", "raw", "--print-units", "base")
    + ("--log-file", OUTPUT, *(word for name in _SECTIONS for word in ("--section", name)))
    + ("--metrics", ",".join(_METRICS)),
    True,
    "Nsight Compute (part of the CUDA toolkit)",
    ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute"),
)
CHECKS = ("memcheck", "racecheck", "initcheck", "synccheck")
#: Name -> tool.  A profile on AMD and Ascend takes two passes: each counts what fits into one.
TOOLS: Mapping[str, Tool] = {
    tool.name: tool
    for tool in (
        *(_sanitizer(name) for name in CHECKS),
        _NCU,
        _amd(1, ("FETCH_SIZE", "WRITE_SIZE")),
        _amd(2, ("OccupancyPercent", "VALUBusy", "MemUnitBusy")),
        _ascend(1, "PipeUtilization"),
        _ascend(2, "Memory"),
    )
}


def profilers(backend: str) -> list[Tool]:
    """The passes of a profile on devices of a backend; none where there is no tool for them."""
    return [tool for tool in TOOLS.values() if tool.profiles and tool.backend == backend]


def found(tool: Tool) -> str:
    """The path of the tool's program on this host; "" if it is not installed."""
    own = [Path(os.environ[name], "bin") for name in ("CUDA_HOME", "ROCM_PATH") if os.environ.get(name)]
    folders = [os.environ.get("PATH", os.defpath), *map(str, own), *tool.places]
    return shutil.which(tool.program, path=os.pathsep.join(folders)) or ""


def missing(tool: Tool, what: str) -> Message:
    """The sentence for a host without the tool; `what` needs it."""
    return Message(
        f"{what} needs {tool.program}, which is not installed on this host (not on PATH, nor in "
        f"{', '.join(tool.places)}); install {tool.package}",
        id="tool-missing",
    )


def under(program: str, tool: Tool) -> tuple[str, ...]:
    """The words that start the child under the tool, before the child's own; for `placed`."""
    aside = ("/bin/sh", "-c", 'exec 3<&0 4>&1 0</dev/null 1>&2; exec "$@"', "farm")
    inside = ("/bin/sh", "-c", 'exec "$@" <&3 >&4 3<&- 4>&-', "farm")
    return (*aside, program, *tool.words, *inside)


def placed(word: str, output: Path) -> str:
    """A word of `under` with the place where this child's tool writes."""
    return word.replace(OUTPUT, str(output))


def deadlines(table: Mapping[str, float]) -> dict[str, float]:
    """The limits of a run whose children run under a tool."""
    return {**table, **{name: SLOWER * limits.of(table)[name] for name in _SLOWED}}
