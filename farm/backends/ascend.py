"""Ascend NPUs through torch_npu and triton-ascend.

Devices are known by the runtime's logic ids, which the mask takes; inside a mask they are numbered from 0 again, and
npu-smi knows them by (NPU, chip), whatever a mask says.  Proven against stubs of the vendor's tool and libraries only:
docs/ascend.md says what ran where.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

from farm.backends import _cann, _npu, api
from farm.backends._cann import fault as fault  # the vendor's words, understood
from farm.backends.api import HostDevice, Identity, Session, TelemetryReader
from farm.errors import EnvironmentUnusable

NAME = "ascend"
ACCELERATOR = True
EVIDENCE = "executed"
DEFAULT_TIMING = "rotating_graph"
#: What times a call that no graph holds; where MSPTI is not to be had the child goes on to `events` and says so.
FALLBACK_TIMING = "mspti"
RESOURCE = {"NPU": 1}
NOT_YET, TRIAL_CAPTURE, CAPTURE_MAY_KILL, granted = "", False, False, None
PAUSES, MEMORY_SECONDS = api.PAUSES, api.MEMORY_SECONDS
complaints = api.no_complaints
MASK = "ASCEND_RT_VISIBLE_DEVICES"
#: The last-level cache that is taken for granted where torch_npu does not tell it: that of a 910B.
L2_BYTES = 192 << 20
#: An operator that hangs holds the device until its own time is over, 1091 s by default, whatever becomes of its
#: process.  So it gets this share of the shortest deadline of a phase that runs kernels; in seconds where that is not
#: known (the shortest default one is 60 s).
OP_SHARE, OP_TIMEOUT_S = 5 / 6, 50
#: A device with a major alarm serves only where the node's operator says so: `FARM_ASCEND_ALARM=accept`.
ACCEPT_ALARM = "FARM_ASCEND_ALARM"
#: By part, first match: memory bandwidth in 1e9 B/s, and the densest matrix rate (int8) in 1e12 op/s.  **Unconfirmed**
#: (2026-11): no datasheet with these numbers was found; they are meant as bounds that accuse nobody wrongly.  The
#: bandwidth is 4096 bits at the 1600 MHz that npu-smi tells of a 64 GiB part's HBM (parts with less have as much, or
#: less); the rates are twice the fp16 ones in circulation for each part, which lie above cores x 8192 x clock.
PEAKS: tuple[tuple[str, float, float], ...] = (
    ("910B1", 1638.4, 828.0),
    ("910B2", 1638.4, 752.0),
    ("910B3", 1638.4, 626.0),
    ("910B4", 1638.4, 560.0),
    ("910_93", 1638.4, 752.0),  # of one die of a two-die part (9362, 9372, 9382, 9391, 9392)
)


def peaks(model: str) -> tuple[float, float] | None:
    """(bandwidth, matrix rate) of a part by the name that the runtime or npu-smi gives, or None for one not known."""
    name = model.replace(" ", "")
    return next(((gbps, tflops) for part, gbps, tflops in PEAKS if part in name), None)


# the host


def detect(count: int | None = None) -> list[HostDevice]:
    """This host's NPUs as npu-smi lists them, else as there are device files, and as the mask leaves them; at most
    `count`."""
    tool = _npu.Tool()
    chips = _npu.chips(tool)
    if chips:
        names = _models(tool, chips)
        devices = [HostDevice(str(c.logic), names[c], c.bus) for c in chips]
    else:
        devices = [HostDevice(str(i), "Ascend NPU") for i, _ in enumerate(_npu.nodes())]
    devices = visible(devices, os.environ)
    return devices[:count] if count else devices


def visible(devices: list[HostDevice], environment: Mapping[str, str]) -> list[HostDevice]:
    """The devices that a mask of logic ids leaves, in the mask's order: the runtime reads it up to the first entry that
    is no id of a device (a space is none), and wants ids in ascending order."""
    mask = environment.get(MASK)
    if mask is None:
        return devices
    out: list[HostDevice] = []
    for item in mask.split(","):
        match = next((d for d in devices if d.id == item), None)
        if match is None or match in out:
            break
        out.append(match)
    return out


def child_env(device_id: str) -> dict[str, str]:
    """Show the child one device, which is its number 0; keep `import torch` from loading torch_npu by itself, so that
    what is wrong with it can be said; and load MSPTI's library first, where CANN has it."""
    variables = {MASK: device_id, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    library = _cann.mspti_library(_cann.home(os.environ))
    if library:
        before = os.environ.get("LD_PRELOAD", "")
        listed = before.replace(":", " ").split()
        variables["LD_PRELOAD"] = before if library in listed else " ".join([library, *listed])
    return variables


def child_options(deadlines: Mapping[str, float]) -> dict[str, Any]:
    """What the child must know of its phases' deadlines, in seconds: how long one operator may take."""
    known = [float(deadlines[phase]) for phase in ("compile", "check", "timing") if phase in deadlines]
    return {"op_timeout_s": max(1, int(min(known) * OP_SHARE))} if known else {}


def physical_id(device_id: str, options: Mapping[str, Any]) -> str:
    """What the device's lock is named by: its bus id, whatever a mask or an index calls it."""
    del options
    chip = _chip(_npu.Tool(), device_id)
    return f"npu-{chip.bus}" if chip and chip.bus else f"ascend-{device_id}"


def telemetry(device_id: str, options: Mapping[str, Any], spool: str) -> TelemetryReader | None:
    """A reader of clock, temperature, power, memory errors and processes by npu-smi; None where it tells of no such
    device."""
    del options, spool
    tool = _npu.Tool()
    chip = _chip(tool, device_id)
    return _npu.NpuReader(tool, chip) if chip else None


def identity(device_id: str, options: Mapping[str, Any]) -> Identity | None:
    """By npu-smi; None where it tells of no such device.  The tool knows no power limit and no clocks that somebody
    set; chips of one NPU are neighbours, and `module` names it where it has several."""
    del options
    tool = _npu.Tool()
    chips = _npu.chips(tool)
    chip = next((c for c in chips if str(c.logic) == device_id), None)
    if chip is None:
        return None
    board = _npu.fields(tool("-t", "board", "-i", str(chip.npu), "-c", str(chip.chip)), chip.chip)
    die = next((v for k, v in board.items() if k.endswith("Die ID") and v.strip("0 ") and v != "NA"), "")
    several = sum(c.npu == chip.npu for c in chips) > 1
    return Identity(
        model=_npu.soc(chip.name, board.get("NPU Name", "")),
        uuid=die.replace(" ", "-") or chip.bus,
        driver=_npu.driver(tool()),
        stack=_cann.version(_cann.home(os.environ)),
        module=f"npu-{chip.npu}" if several else "",
    )


def unfit(device_id: str) -> str:
    """Why the device must not be opened, in one sentence; "" if it may.  Queries its health with npu-smi."""
    tool = _npu.Tool()
    chip = _chip(tool, device_id)
    if chip is None:
        return f"device {device_id}: {tool.silent}" if "hangs" in tool.silent else ""
    text = tool("-t", "health", "-i", str(chip.npu), "-c", str(chip.chip))
    told = _npu.fields(text, chip.chip)
    health = (told.get("Health Status") or told.get("Health") or chip.health).upper()
    if not health or health in _npu.HEALTHY:
        return ""
    if health == "ALARM" and os.environ.get(ACCEPT_ALARM) == "accept":
        return ""
    said = [told.get(k, "") for k in ("Error Code", "Error Information")]
    codes = ", ".join(s for s in said if s and s != "NA")
    accept = f"use the device anyway with {ACCEPT_ALARM}=accept, " if health == "ALARM" else ""
    what = f"npu-smi reports health {health} for device {device_id} (NPU {chip.npu}, chip {chip.chip})"
    return f"{what}{f' ({codes})' if codes else ''}: look up the code, {accept}or reset the device"


def _chip(tool: _npu.Tool, device_id: str) -> _npu.Chip | None:
    return next((c for c in _npu.chips(tool) if str(c.logic) == device_id), None)


def _models(tool: _npu.Tool, chips: Sequence[_npu.Chip]) -> dict[_npu.Chip, str]:
    """The part of each; the boards of one name, of which two-die parts have several, are asked once."""
    names: dict[str, str] = {}
    for c in chips:
        if c.name not in names:
            told = _npu.soc(c.name)
            if told == "Ascend910":
                board = _npu.fields(tool("-t", "board", "-i", str(c.npu), "-c", str(c.chip)), c.chip)
                told = _npu.soc(c.name, board.get("NPU Name", ""))
            names[c.name] = told or "Ascend NPU"
    return {c: names[c.name] for c in chips}


# the child


def open_session(device_id: str, options: dict[str, Any]) -> Session:
    """In the child: opens the one visible device.  Unusable says why it cannot be."""
    folder = _cann.home(os.environ)
    _see_cann(folder)
    torch = _torch()
    acl = _acl(folder)
    why = unfit(device_id)
    if why:
        raise EnvironmentUnusable(why, "device")
    with _told("the device cannot be queried"):
        if not torch.npu.is_available():
            cure = "check that the mask names a device of `npu-smi info -m`, and that no container hides /dev/davinci*"
            raise EnvironmentUnusable(f"torch_npu sees no NPU ({MASK}={device_id}); {cure}")
    seconds = int(options.get("op_timeout_s") or OP_TIMEOUT_S)
    device = torch.device("npu", 0)
    with _told(f"device {device_id} cannot be opened"):
        torch.npu.set_device(device)
        timeout = seconds if acl.rt.set_op_execute_time_out(seconds) == 0 else None
        # One operator: a device that an earlier process left wedged says so here, and helpers of the operator compiler
        # that stay are started before anything watches for processes that a kernel leaves.
        torch.ones(8, device=device).add_(1)
        torch.npu.synchronize()
        props = torch.npu.get_device_properties(0)
        name = str(torch.npu.get_device_name(0))
    uuid, driver = str(getattr(props, "uuid", "") or ""), _npu.driver(_npu.Tool()())
    from farm.child.session import TorchSession

    session = TorchSession(
        backend=NAME,
        device=device,
        target={"backend": NAME, "model": name},
        device_name=f"{name} {uuid}".strip(),
        timing_methods=("rotating_graph", "mspti", "events", "host"),
        fault=fault,
    )
    cores = {
        "vector_cores": getattr(props, "vector_core_num", None),
        "cube_cores": getattr(props, "cube_core_num", None),
    }
    l2 = int(getattr(props, "L2_cache_size", 0) or 0)
    session.fingerprint.update(
        {
            "triton": _installed("triton-ascend", "triton_ascend") or session.fingerprint.get("triton", ""),
            "torch_npu": _installed("torch-npu", "torch_npu") or str(getattr(_module("torch_npu"), "__version__", "")),
            "cann": _cann.version(folder),
            "driver": driver,
            "uuid": uuid,
            "soc": name,
            **{k: v for k, v in cores.items() if v},
            "l2_mib": round((l2 or L2_BYTES) / 2**20, 1),
            "memory_gib": round(int(getattr(props, "total_memory", 0) or 0) / 2**30, 1),
            "op_timeout_s": timeout,
        }
    )
    session.cache_bytes = max(l2, L2_BYTES)
    session.recorder = _recorder
    bounded: Any = session
    bounded.run = _within_its_deadlines(session.run, acl, seconds)
    return session


def _within_its_deadlines(run: Callable[..., Any], acl: Any, seconds: int) -> Callable[..., Any]:
    """`run` with the time of an operator set by the deadlines of the attempt at hand, where its call says them: those
    that the child was started with are the longest of all matrices.  CANN's manual: of several settings in one process
    the last counts (aclrtSetOpExecuteTimeOut); on no device so far."""
    now = seconds

    def bounded(message: Any, say: Any) -> Any:
        nonlocal now
        wanted = child_options(message.call.get("deadlines") or {}).get("op_timeout_s", seconds)
        if wanted != now:
            with contextlib.suppress(Exception):  # then the last one goes on to hold
                now = wanted if acl.rt.set_op_execute_time_out(wanted) == 0 else now
        return run(message, say)

    return bounded


def _recorder() -> Any:
    from farm.backends import _mspti

    return _mspti.recorder()


def _see_cann(folder: Any) -> None:
    """Put CANN's Python modules where this process, and the Pythons that the operator compiler starts, find them: a
    child gets no PYTHONPATH of the shell that sourced set_env.sh."""
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    paths = _cann.python_paths(folder)
    sys.path += [p for p in paths if p not in sys.path]
    given = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    if paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([*given, *(p for p in paths if p not in given)])


def _torch() -> Any:
    """torch with torch_npu.  EnvironmentUnusable, with the reason, if they cannot be imported."""
    try:
        torch = _module("torch")
    except Exception as error:
        cure = "install the CPU build of torch in this environment, and the torch_npu of the same version"
        raise EnvironmentUnusable(f"import torch fails ({_line(error)}); {cure}") from error
    made_for = torch.version.cuda or torch.version.hip
    if made_for:
        what = f"torch {torch.__version__} is built for another vendor's GPUs; torch_npu does not work with this build"
        raise EnvironmentUnusable(f"{what}; install the CPU build of torch in this environment")
    try:
        _module("torch_npu")
    except ModuleNotFoundError as error:
        if error.name != "torch_npu":
            raise EnvironmentUnusable(f"import torch_npu fails ({_line(error)}); install the missing module") from error
        what = f"torch_npu is not installed, but torch {torch.__version__} is"
        raise EnvironmentUnusable(f"{what}; install torch-npu of the same version in this environment") from error
    except Exception as error:
        text = _line(error)
        cure = "install the torch-npu that matches torch's version"
        if ".so" in text:
            cure = "source CANN's set_env.sh before the node starts, or set LD_LIBRARY_PATH in the node's configuration"
        raise EnvironmentUnusable(f"import torch_npu fails ({text}); {cure}") from error
    if not hasattr(torch, "npu"):
        what = f"torch_npu was imported, but did not register with torch {torch.__version__}"
        raise EnvironmentUnusable(f"{what}; install torch-npu of the same version")
    return torch


def _acl(folder: Any) -> Any:
    """CANN's Python interface, which limits an operator's time."""
    try:
        acl = _module("acl")
        acl.rt.set_op_execute_time_out  # noqa: B018 - a folder of that name is no CANN
        return acl
    except (ImportError, OSError, AttributeError) as error:
        where = f"CANN is in {folder}" if folder else "CANN was not found, because ASCEND_TOOLKIT_HOME is not set"
        what = f"acl, CANN's Python interface, cannot be imported ({_line(error)}; {where})"
        cure = "source CANN's set_env.sh before the node starts"
        raise EnvironmentUnusable(
            f"{what}; {cure}: without acl, a hanging kernel blocks the device for 1091 s"
        ) from error


@contextlib.contextmanager
def _told(what: str) -> Any:
    """Turn exceptions of the vendor's software into EnvironmentUnusable, with the owner of the fault."""
    try:
        yield
    except EnvironmentUnusable:
        raise
    except Exception as error:
        known = fault(str(error))
        owner = known.owner if known and known.owner != "kernel" else "device"
        text = known.what if known else _line(error)
        raise EnvironmentUnusable(f"{what} ({text}); see `npu-smi info`, and reset the device", owner) from error


def _module(name: str) -> Any:
    return importlib.import_module(name)


def _installed(*distributions: str) -> str:
    for name in distributions:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ""


def _line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
