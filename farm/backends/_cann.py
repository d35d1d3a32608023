"""CANN, the software under an Ascend device: where it lies, its version, and what its words mean.  Opens no device.

Error codes and their meanings are those of aclError and of the runtime's error codes in the vendor's API references
(hiascend.com, CANN 8.0 to 9.1); texts are those of its troubleshooting guides and of triton-ascend's messages.
"""

from __future__ import annotations

import contextlib
import platform
import re
from collections.abc import Mapping
from pathlib import Path

from farm.backends.api import Fault

#: Where the toolkit is by default: from CANN 8.5 on, and before.
HOMES = ("/usr/local/Ascend/cann", "/usr/local/Ascend/ascend-toolkit/latest")
_RUNNING = re.compile(r"^(?:toolkit|runtime|compiler)_running_version=\[[^\]:]*:([^\]]+)\]", re.MULTILINE)
_VERSION = re.compile(r"^version=(\S+)", re.MULTILINE)


def home(environment: Mapping[str, str]) -> Path | None:
    """The toolkit's folder: as its set_env.sh names it, else the default one; None where there is none."""
    named = [environment.get(k, "") for k in ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH")]
    with contextlib.suppress(OSError):
        return next((Path(p) for p in (*named, *HOMES) if p and Path(p).is_dir()), None)
    return None


def version(folder: Path | None) -> str:
    """CANN's version, e.g. "8.5.0": from ascend_toolkit_install.info of this machine's architecture, else version.cfg;
    "" where neither tells."""
    if folder is None:
        return ""
    for name, pattern in (
        (f"{platform.machine()}-linux/ascend_toolkit_install.info", _VERSION),
        ("ascend_toolkit_install.info", _VERSION),
        ("version.cfg", _RUNNING),
    ):
        with contextlib.suppress(OSError):
            found = pattern.search((folder / name).read_text(encoding="utf-8", errors="replace"))
            if found:
                return found.group(1)
    return ""


def python_paths(folder: Path | None) -> list[str]:
    """What CANN's set_env.sh puts on PYTHONPATH (acl, and the operator compiler, which starts Pythons of its own), as
    far as it is there."""
    parts = ("python/site-packages", "opp/built-in/op_impl/ai_core/tbe")
    return [str(folder / p) for p in parts if (folder / p).is_dir()] if folder else []


def mspti_library(folder: Path | None) -> str:
    """The library that must be loaded before everything else for MSPTI to see kernels; "" where it is not there."""
    places = ("lib64/libmspti.so", "tools/mspti/lib64/libmspti.so")
    return next((str(folder / p) for p in places if (folder / p).is_file()), "") if folder else ""


_KERNEL, _DEVICE, _INFRA = "kernel", "device", "infra"
#: code -> status, owner, what happened, whether the process has lost its device.  The first code here that a text names
#: counts, because a core's exception is followed by the codes of everything that failed after it.
CODES: Mapping[int, tuple[str, str, str, bool]] = {
    507034: ("timed_out", _KERNEL, "a vector core did not finish in time", True),
    507014: ("timed_out", _KERNEL, "an AI core did not finish in time", True),
    507048: ("timed_out", _KERNEL, "a mixed-core kernel did not finish in time", True),
    507017: ("timed_out", _KERNEL, "the AI CPU did not finish in time", True),
    507035: ("crashed", _KERNEL, "a vector core raised an exception", True),
    507015: ("crashed", _KERNEL, "an AI core raised an exception", True),
    507036: ("crashed", _KERNEL, "a vector core was trapped", True),
    507016: ("crashed", _KERNEL, "an AI core was trapped", True),
    507042: ("crashed", _KERNEL, "an AI core read out of bounds", True),
    507043: ("crashed", _KERNEL, "an AI core wrote out of bounds", True),
    507044: ("crashed", _KERNEL, "a vector core read out of bounds", True),
    507045: ("crashed", _KERNEL, "a vector core wrote out of bounds", True),
    507049: ("crashed", _KERNEL, "a mixed-core kernel raised an exception", True),
    507050: ("crashed", _KERNEL, "a mixed-core kernel was trapped", True),
    507046: ("timed_out", _KERNEL, "a stream did not finish in time", True),
    507047: ("timed_out", _KERNEL, "an event was not reached in time", True),
    207001: ("out_of_memory", _KERNEL, "the device does not have that much memory left", False),
    207018: ("out_of_memory", _KERNEL, "the device is out of memory", False),
    # What a device answers to everything that an earlier process left wedged: no kernel of ours runs on the AI CPU.
    507018: ("infra_error", _DEVICE, "the AI CPU raised an exception", True),
    507010: ("infra_error", _DEVICE, "the task scheduler's heartbeat was lost", True),
    507012: ("infra_error", _DEVICE, "the device reported nothing in time", True),
    507013: ("infra_error", _DEVICE, "the system's DMA failed", True),
    507033: ("infra_error", _DEVICE, "the device could not be initialized", True),
    507001: ("infra_error", _DEVICE, "the task scheduler failed", True),
    507051: ("infra_error", _DEVICE, "the host cannot communicate with the device", True),
    507052: ("infra_error", _DEVICE, "data could not be copied to or from the device", True),
    507899: ("infra_error", _DEVICE, "the driver failed", True),
    507900: ("infra_error", _DEVICE, "the AI CPU failed", True),
    507901: ("infra_error", _DEVICE, "the connection to the device closed", True),
    207004: ("infra_error", _INFRA, "the device number is unknown in this process", True),
    207006: ("infra_error", _INFRA, "this user is not allowed to use the device", True),
}
_CODE = re.compile(r"(?:code|result|ret\w*|error)\s*(?:is\s*|[:=\[(]\s*)*([25]07\d{3})(?!\d)", re.IGNORECASE)
_WHY = re.compile(r"errorStr:\s*([^\n\[]+?)(?:,\s*fixp|\.?\s*\[|,|\n|$)")
_OVERFLOW = re.compile(r"(\w+) overflow, requires (\d+) bits while (\d+) bits available")
_CORE_DIM = re.compile(r"coreDim\s*=?\s*(\d*)\s*can'?t be greater than UINT16_MAX")
_COMPILERS = re.compile(
    r"MLIRCompilationError|bishengir-compile|bishengir-opt|\bhivmc\b|triton-adapter-opt|\bbisheng\b"
)
_DIED = re.compile(
    r"Assertion|LLVM ERROR|PLEASE submit a bug report|Stack dump|core dumped|SIGABRT|Aborted|fatal error"
)
_CORE_ERROR = re.compile(r"\b(aivec|aicore) error")


def fault(text: str, code: int | None = None) -> Fault | None:
    """See `farm.backends`.  `text`: of an exception, or the last output of a process that ended with `code`."""
    found = _OVERFLOW.search(text)
    if found:
        memory = {"ub": "Unified Buffer", "cbuf": "L1 buffer"}.get(found.group(1).lower(), found.group(1))
        needs, has = int(found.group(2)) // 8, int(found.group(3)) // 8
        return Fault("compile_error", _KERNEL, f"needs {needs:,} bytes of {memory}, but only {has:,} are available")
    found = _CORE_DIM.search(text)
    if found or "grid should be less than 65536" in text:
        size = f" of {found.group(1)}" if found and found.group(1) else ""
        return Fault("crashed", _KERNEL, f"a grid{size} exceeds the limit of 65,535 programs per launch")
    codes = {int(c) for c in _CODE.findall(text)}
    known = next((c for c in CODES if c in codes), None)
    if known is not None:
        status, owner, what, lost = CODES[known]
        why = _WHY.search(text)
        return Fault(status, owner, f"{what} ({known})" + (f": {why.group(1).strip()}" if why else ""), lost)
    named = _COMPILERS.search(text)
    if named and ("MLIRCompilationError" in text or (code is not None and _DIED.search(text))):
        return Fault("compile_error", _KERNEL, f"the kernel's compiler failed ({named.group(0)})")
    found = _CORE_ERROR.search(text)
    if found and "EZ9999" in text:
        which = "a vector core" if found.group(1) == "aivec" else "an AI core"
        return Fault("crashed", _KERNEL, f"{which} raised an exception (EZ9999)", True)
    if "NPU out of memory" in text or "EL0004" in text:
        return Fault("out_of_memory", _KERNEL, "the device is out of memory")
    if "E39999" in text:
        return Fault("infra_error", _DEVICE, "the AI CPU failed (E39999)", True)
    found = re.search(r"\b(EI|EJ)\d{4}\b", text)
    if found:
        return Fault("infra_error", _INFRA, f"collective communication failed ({found.group(0)})", True)
    if "EZ9999" in text:
        return Fault("crashed", _KERNEL, "an operator failed inside (EZ9999)", True)
    return None
