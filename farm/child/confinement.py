"""Keeps this process, and all that it starts, out of the farm's other processes: by Landlock, which needs no privilege.

Code under test runs as the user that the farm runs as.  Otherwise it could read the variables and the memory of the
farm's processes under /proc, change them there, and signal them.  A confined process can do this only to processes that
are confined with it.  Files are not confined: Landlock can only allow folders, and nobody knows all the folders in
which compilers and vendors' libraries create files.  Standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
from pathlib import Path

#: The same on every architecture that PyTorch runs on.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH = 1, 1
#: Moving a file to another folder.  Every ruleset denies it unless a rule allows it; the first version cannot allow it.
_REFER, _REFER_SINCE = 1 << 13, 2
_SCOPE_SIGNAL, _SCOPE_SINCE = 1 << 1, 6
_PR_SET_NO_NEW_PRIVS = 38
#: CUDA's library has this file made by a program with more rights, which a confined process cannot start.
_NVIDIA, _NVIDIA_UVM = Path("/proc/driver/nvidia"), Path("/dev/nvidia-uvm")


class _Ruleset(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def version() -> int:
    """Of the kernel's Landlock; 0 if there is none, or if the container does not allow it."""
    try:
        return max(0, _call(_CREATE_RULESET, None, 0, _VERSION_FLAG))
    except OSError:
        return 0


def refusal() -> str:
    """Why processes cannot be confined here; "" where they can."""
    found = version()
    if found >= _REFER_SINCE:
        return ""
    if found:
        return f"the kernel's Landlock has version {found}; version {_REFER_SINCE} is needed (Linux 5.19)"
    return "the kernel has no Landlock, or the container forbids it"


def confine() -> str:
    """Confine this process for good.  Returns why it is not, "" if it is; raises nothing.

    To be called while this process has one thread: others stay as they are.
    """
    try:
        return refusal() or _confine()
    except Exception as error:
        return f"Landlock failed ({error})"


def limit(told: str) -> None:
    """Set this process's resource limits for good: JSON, names of `resource.RLIMIT_*` -> values; "" for none."""
    for name, value in json.loads(told or "{}").items():
        number = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(number)[1]
        least = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (least, least))


def _confine() -> str:
    signals = version() >= _SCOPE_SINCE
    attributes = _Ruleset(_REFER, 0, _SCOPE_SIGNAL if signals else 0)
    size = ctypes.sizeof(_Ruleset) if signals else ctypes.sizeof(ctypes.c_uint64)
    ruleset = _call(_CREATE_RULESET, ctypes.byref(attributes), size, 0)
    try:
        root = os.open("/", os.O_PATH | os.O_CLOEXEC)
        try:
            _call(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(_Beneath(_REFER, root)), 0)
        finally:
            os.close(root)
        try:
            _call(_RESTRICT_SELF, ruleset, 0)
        except OSError as error:
            if error.errno != errno.EPERM:
                raise
            if _NVIDIA.exists() and not _NVIDIA_UVM.exists():
                return f"{_NVIDIA_UVM} does not exist yet; nvidia-modprobe -u creates it"
            _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    return ""


_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long


def _call(number: int, *arguments: object) -> int:
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    found = int(_LIBC.syscall(ctypes.c_long(number), *words))
    if found < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return found
