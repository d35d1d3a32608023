"""Looks at this host.  Whatever may hang or crash happens in a process of its own, and every wait has a deadline."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib import import_module, metadata
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from farm import __version__, address, backends, providers
from farm.actor import supervise
from farm.doctor import asking, secret
from farm.doctor.asking import trials
from farm.doctor.devices import backend_facts
from farm.doctor.facts import SKIPPED, Asked, Environment, Facts, Head, Node, Space, Trial
from farm.doctor.host import Host
from farm.errors import FarmError, UsageError
from farm.filecache import default_root
from farm.ops import ROOT, foreign_kernels

if TYPE_CHECKING:
    from farm.doctor.finding import Finding
    from farm.nodes.config import NodeConfig

PACKAGES = ("numpy", "pyyaml", "ray", "pyarrow", "jinja2", "rich")
VARIABLES = (
    "RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL", "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION",
    "ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "TRITON_DEFAULT_BACKEND", "TORCH_DEVICE_BACKEND_AUTOLOAD",
)  # fmt: skip
SECRETS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
#: Peers that exist for one vendor's devices alone: elsewhere nobody misses them.
VENDORS_PEERS = {"aiter": "rocm", "torch_npu": "ascend"}
PORT = 6379  # where `ray start --head` listens unless it is told otherwise
HOST_STEP_SECONDS = 30.0  # of a step in the supervisor's Python: a vendor's library that hangs, a head that is silent


def gather(
    store: str | Path, *, asked: Asked | None = None, host: Host | None = None, environ: Mapping[str, str] | None = None
) -> Facts:  # fmt: skip
    """Everything that is asked of a host; `store` is where runs would go, `environ` what Ray is or will be started in.

    UsageError for an environment that the node does not have, BackendError for no backend.
    """
    asked, host, environ = asked or Asked(), host or Host(), os.environ if environ is None else environ
    if asked.backend:
        backends.get(asked.backend)
    config, node = _node()
    _known_environment(config, asked.environment)
    names = [asked.backend] if asked.backend else backends.known()
    known = {name: backend_facts(name, host, simulated=node.simulates) for name in names}
    vendors = [
        n
        for n, b in known.items()
        if b.accelerator and (b.devices or b.files or b.pci or n in (asked.backend, node.backend))
    ]
    peers = {} if asked.join else {n: d for n, d in _peers().items() if VENDORS_PEERS.get(n) in (None, *vendors)}
    written = address.written()
    variables = {n: environ[n] for n in VARIABLES if n in environ}
    return Facts(
        python=sys.version_info[:3],
        executable=sys.executable,
        farm=__version__,
        packages={name: _version(name) for name in PACKAGES},
        trials=_supervisors(vendors, environ),
        environments=_environments(config, asked, vendors, peers),
        peers=peers,
        backends=tuple(known.values()),
        our_kernels=str(ROOT / "kernels"),
        foreign_kernels=foreign_kernels(),
        memory=space(host.path("/dev/shm")) if host.path("/dev/shm").is_dir() else None,
        store=space(store),
        scratch=space(address.address_file().parent.parent),
        cache=space(default_root()),
        cxx=_first(os.environ.get("CXX"), "g++", "clang++"),
        cc=_first(os.environ.get("CC"), "gcc", "clang", "cc"),
        variables={**variables, **{n: "set" for n in SECRETS if n in environ}},
        ray_address_silent=_silent(variables["RAY_ADDRESS"]) if variables.get("RAY_ADDRESS", "auto") != "auto" else "",
        ray_written=written,
        ray_file=str(address.address_file()),
        ray_silent=_silent(written) if written else None,
        token=secret.look(environ, Path.home()),
        head=_head(asked.head, environ) if asked.head else None,
        node=node,
        system=host.system(),
        now=time.time(),
        newest_source=max(p.stat().st_mtime for p in (ROOT / "farm").rglob("*.py")),
        asked=asked,
    )


def for_join(
    backend: str, head: str, *, variables: Mapping[str, str | None] | None = None, host: Host | None = None
) -> list[Finding]:
    """What `farm nodes join` has to know before it starts Ray here; a finding of level FAIL stops the join.

    head: HOST[:PORT].  variables: what the join sets (None: unsets) in Ray's environment, as RAY_AUTH_TOKEN_PATH.
    UsageError or BackendError for a head or a backend that is none.
    """
    from farm.doctor.judgement import examine

    asked = Asked(backend=backend, head=head_address(head), join=True)
    changed = variables or {}
    environ = {k: v for k, v in {**os.environ, **changed}.items() if v is not None}
    return examine(gather("farm-results", asked=asked, host=host, environ=environ))


def head_address(head: str) -> str:
    """HOST:PORT of HOST[:PORT].  UsageError for anything else."""
    host = head if ":" in head.rpartition("]")[2] or not head else f"{head}:{PORT}"
    try:
        address.parse(host, "")
    except UsageError:
        raise UsageError(f'--head "{head}": is no HOST[:PORT], for example 10.0.0.1 or 10.0.0.1:{PORT}') from None
    return host


def _node() -> tuple[NodeConfig | None, Node]:
    from farm.nodes import config

    try:
        found = config.load()
    except FarmError as error:
        return None, Node(file=os.environ.get(config.VARIABLE, str(config.DEFAULT_FILE)), failure=str(error))
    return found, Node(
        found.file, "", found.backend, dict(found.expect), found.devices, dict(found.labels), bool(found.simulate)
    )


def _known_environment(config: NodeConfig | None, name: str) -> None:
    """UsageError, before anything is looked at, for an environment that the node does not have."""
    if name and name not in (config.environments if config else {}):
        from farm.nodes.config import NodeConfig, environment

        environment(config or NodeConfig(), name)


def _environments(
    config: NodeConfig | None, asked: Asked, vendors: Sequence[str], peers: dict[str, str]
) -> tuple[Environment, ...]:
    from farm.nodes.config import NodeConfig, environment

    config = config or NodeConfig()
    names = (
        [asked.environment] if asked.environment else ["default", *(n for n in config.environments if n != "default")]
    )
    out = []
    for name in names:
        try:
            there = environment(config, name)
        except FarmError as error:
            if name not in config.environments:
                raise
            out.append(Environment(name, own=False, command=config.environments[name].python, failure=str(error)))
            continue
        steps = ["numpy", "torch", "triton", "accelerator", *_vendor_steps(vendors), "kernels"]
        found = asking.environment(there, [*steps, *(f"provider {p}" for p in peers)], name=name)
        out.append(_further(there, found, vendors))
    return tuple(out)


def _vendor_steps(vendors: Sequence[str]) -> list[str]:
    steps = {"cuda": ["driver"], "rocm": ["amdsmi", "driver"], "ascend": ["acl", "torch_npu", "driver"]}
    return list(dict.fromkeys(step for vendor in vendors for step in steps.get(vendor, [])))


def _further(there: supervise.Environment, found: Environment, vendors: Sequence[str]) -> Environment:
    """What is worth asking only now: torch without what it loads by itself, the assembler for this very part."""
    from dataclasses import replace

    more = {}
    if "ascend" in vendors and not found.failure and not found.trial("torch").ok:
        alone = asking.environment(there, ["torch"], variables={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
        more["torch alone"] = alone.trial("torch")
    if "cuda" in vendors and found.trial("triton").ok:
        part = str(found.trial("accelerator").data.get("architecture", ""))
        step = f"ptxas {part}".strip()
        more["ptxas"] = asking.environment(there, [step]).trial(step)
    return replace(found, trials={**found.trials, **more}) if more else found


def _supervisors(vendors: Sequence[str], environ: Mapping[str, str]) -> dict[str, Trial]:
    """What Ray's own Python can import: it counts devices by the vendors' libraries."""
    steps = ["ray", *(s for v, s in (("rocm", "amdsmi"), ("ascend", "acl")) if v in vendors)]
    return trials(steps, step_s=HOST_STEP_SECONDS, variables=asking.own_variables(environ))


def _head(where: str, environ: Mapping[str, str]) -> Head:
    """What answers at the head's address, and, where Ray does, what it says of the cluster."""
    host, port = address.parse(where, "--head")
    kind, reason = address.reach(host, port)
    local = host == "localhost" or host.startswith("127.") or host == "::1"
    if kind:
        return Head(where, kind, reason, loopback=local)
    step = f"head {where}"
    patience = {"RAY_gcs_server_request_timeout_seconds": "5", "RAY_gcs_rpc_server_connect_timeout_s": "2"}
    found = trials([step], step_s=15.0, total_s=20.0, variables={**asking.own_variables(environ), **patience})
    return Head(where, trial=found.get(step, SKIPPED), loopback=local)


def _peers() -> dict[str, str]:
    """Provider -> its distribution where that is neither torch nor ours."""
    out = {}
    for name in sorted(m.name for m in iter_modules(providers.__path__)):
        try:
            module: Any = import_module(f"farm.providers.{name}")
        except Exception:
            out[name] = ""  # its trial says why
            continue
        if hasattr(module, "NAME"):
            distribution = module.DISTRIBUTION or ""
            out[name] = "" if distribution in ("torch", "kernel-farm") else distribution
    return out


def space(path: str | Path) -> Space:
    """Whether something can be written at `path`, tried in the nearest folder that exists; leaves nothing behind."""
    there = Path(path).absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        if not there.is_dir():
            return Space(str(path), failure=f"{there} is not a folder")
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"x")
            file.flush()
        usage = shutil.disk_usage(there)
    except OSError as error:
        return Space(str(path), failure=error.strerror or str(error))
    return Space(str(path), usage.free, usage.total)


def _silent(where: str) -> str | None:
    try:
        return address.silent(*address.parse(where, "it"), seconds=2.0)
    except FarmError:
        return "that is no HOST:PORT"


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _first(*names: str | None) -> str | None:
    return next((path for n in names if n and (path := shutil.which(n.split()[0]))), None)
