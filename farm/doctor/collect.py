"""Collects facts about this host.  What may hang or crash runs in a separate process; every wait has a deadline."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module, metadata
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from farm import __version__, backends, kernel_package, providers
from farm.cluster import address, ray_folder, ray_token
from farm.doctor import runner
from farm.doctor.devices import backend_facts
from farm.doctor.facts import SKIPPED, Asked, EnvironmentFacts, Facts, HeadFacts, NodeFacts, ProbeResult, SpaceFacts
from farm.doctor.host import HostReader
from farm.doctor.runner import trials
from farm.errors import FarmError, UsageError
from farm.judge.cache import default_root
from farm.node import sandbox_host
from farm.process.own_modules import own_variables

if TYPE_CHECKING:
    from farm.doctor.finding import Finding
    from farm.node.config import NodeConfig
    from farm.node.environment import Environment

PACKAGES = ("numpy", "pyyaml", "ray", "pyarrow", "jinja2", "rich", "psutil")
VARIABLES = (
    "FARM_ADDRESS",
    "RAY_ADDRESS",
    "RAY_AUTH_MODE",
    "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "ASCEND_RT_VISIBLE_DEVICES",
    "HSA_OVERRIDE_GFX_VERSION",
    "ASCEND_HOME_PATH",
    "ASCEND_TOOLKIT_HOME",
    "TRITON_DEFAULT_BACKEND",
    "TORCH_DEVICE_BACKEND_AUTOLOAD",
)
SECRETS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
#: Peers that exist only for one vendor's devices: on other hosts they are not missing.
VENDORS_PEERS = {"aiter": "rocm", "torch_npu": "ascend"}
PORT = 6379  # where `ray start --head` listens by default
HOST_STEP_SECONDS = (
    30.0  # of a step in the supervisor's Python: a vendor's library that hangs, a head that does not answer
)


def gather(
    store: str | Path,
    *,
    asked: Asked | None = None,
    host: HostReader | None = None,
    environ: Mapping[str, str] | None = None,
) -> Facts:
    """All facts about this host.  `store`: where runs would go; `environ`: the variables that Ray is started with.

    Raises UsageError for an environment that the node does not have, BackendError for an unknown backend.
    """
    asked, host, environ = asked or Asked(), host or HostReader(), os.environ if environ is None else environ
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
        our_kernels=str(ours.resolve()) if (ours := kernel_package.folder()) else "",
        foreign_kernels=kernel_package.foreign(),
        memory=space(host.path("/dev/shm")) if host.path("/dev/shm").is_dir() else None,
        store=space(store),
        scratch=space(ray_folder.scratch(os.environ)),
        cache=space(default_root()),
        cxx=_first(os.environ.get("CXX"), "g++", "clang++"),
        cc=_first(os.environ.get("CC"), "gcc", "clang", "cc"),
        variables={**variables, **{n: "set" for n in SECRETS if n in environ}},
        ray_address_silent=_silent(variables["RAY_ADDRESS"]) if variables.get("RAY_ADDRESS", "auto") != "auto" else "",
        ray_written=written,
        ray_file=str(address.address_file()),
        ray_silent=_silent(written) if written else None,
        token=ray_token.look(environ, Path.home()),
        head=_head(asked.head, environ) if asked.head else None,
        node=node,
        system=replace(host.system(), unsandboxed=sandbox_host.refusal()),
        now=time.time(),
        newest_source=max(p.stat().st_mtime for p in (kernel_package.ROOT / "farm").rglob("*.py")),
        asked=asked,
    )


def for_join(
    backend: str, head: str, *, variables: Mapping[str, str | None] | None = None, host: HostReader | None = None
) -> list[Finding]:
    """The checks that `farm nodes join` makes before it starts Ray here; a finding of level FAIL stops the join.

    head: HOST[:PORT].  variables: what the join sets (None: unsets) in Ray's environment, for example
    RAY_AUTH_TOKEN_PATH.  Raises UsageError for a wrong address, BackendError for an unknown backend.
    """
    from farm.doctor.rules import examine

    asked = Asked(backend=backend, head=head_address(head), join=True)
    changed = variables or {}
    environ = {k: v for k, v in {**os.environ, **changed}.items() if v is not None}
    return examine(gather("farm-results", asked=asked, host=host, environ=environ))


def head_address(head: str) -> str:
    """HOST:PORT of HOST[:PORT].  Raises UsageError for anything else."""
    host = head if ":" in head.rpartition("]")[2] or not head else f"{head}:{PORT}"
    try:
        address.parse(host, "")
    except UsageError:
        what = f'--head "{head}": not a HOST[:PORT], for example 10.0.0.1 or 10.0.0.1:{PORT}'
        raise UsageError(what, id="doctor-head-address") from None
    return host


def _node() -> tuple[NodeConfig | None, NodeFacts]:
    from farm.node import config

    try:
        found = config.load()
    except FarmError as error:
        return None, NodeFacts(file=os.environ.get(config.VARIABLE, str(config.DEFAULT_FILE)), failure=str(error))
    return found, NodeFacts(
        found.file, "", found.backend, dict(found.expect), found.devices, dict(found.labels), bool(found.simulate)
    )


def _known_environment(config: NodeConfig | None, name: str) -> None:
    """Raise UsageError for an environment that the node does not have, before anything is checked."""
    if name and name not in (config.environments if config else {}):
        from farm.node.config import NodeConfig, environment

        environment(config or NodeConfig(), name)


def _environments(
    config: NodeConfig | None, asked: Asked, vendors: Sequence[str], peers: dict[str, str]
) -> tuple[EnvironmentFacts, ...]:
    from farm.node.config import NodeConfig, environment

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
            out.append(EnvironmentFacts(name, own=False, command=config.environments[name].python, failure=str(error)))
            continue
        steps = ["numpy", "torch", "triton", "accelerator", *_vendor_steps(vendors), "kernels"]
        found = runner.environment(there, [*steps, *(f"provider {p}" for p in peers)], name=name)
        out.append(replace(_further(there, found, vendors), sandboxed=there.sandbox is not None))
    return tuple(out)


def _vendor_steps(vendors: Sequence[str]) -> list[str]:
    steps = {"cuda": ["driver"], "rocm": ["amdsmi", "driver"], "ascend": ["acl", "torch_npu", "driver"]}
    return list(dict.fromkeys(step for vendor in vendors for step in steps.get(vendor, [])))


def _further(there: Environment, found: EnvironmentFacts, vendors: Sequence[str]) -> EnvironmentFacts:
    """Steps that depend on the first ones: torch without its plug-ins, and ptxas for exactly this part."""
    more = {}
    if "ascend" in vendors and not found.failure and not found.trial("torch").ok:
        alone = runner.environment(there, ["torch"], variables={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
        more["torch alone"] = alone.trial("torch")
    if "cuda" in vendors and found.trial("triton").ok:
        part = str(found.trial("accelerator").data.get("architecture", ""))
        step = f"ptxas {part}".strip()
        more["ptxas"] = runner.environment(there, [step]).trial(step)
    return replace(found, trials={**found.trials, **more}) if more else found


def _supervisors(vendors: Sequence[str], environ: Mapping[str, str]) -> dict[str, ProbeResult]:
    """What Ray's own Python can import: Ray counts devices with the vendors' libraries."""
    steps = ["ray", *(s for v, s in (("rocm", "amdsmi"), ("ascend", "acl")) if v in vendors)]
    return trials(steps, step_s=HOST_STEP_SECONDS, variables=own_variables(environ))


def _head(where: str, environ: Mapping[str, str]) -> HeadFacts:
    """What answers at the head's address, and what Ray reports about the cluster if it answers."""
    host, port = address.parse(where, "--head")
    kind, reason = address.reach(host, port)
    local = host == "localhost" or host.startswith("127.") or host == "::1"
    if kind:
        return HeadFacts(where, kind, reason, loopback=local)
    step = f"head {where}"
    patience = {"RAY_gcs_server_request_timeout_seconds": "5", "RAY_gcs_rpc_server_connect_timeout_s": "2"}
    found = trials([step], step_s=15.0, total_s=20.0, variables={**own_variables(environ), **patience})
    return HeadFacts(where, trial=found.get(step, SKIPPED), loopback=local)


def _peers() -> dict[str, str]:
    """Provider -> the distribution to install for it: not torch, and not ours where our kernels are."""
    out = {}
    for name in sorted(m.name for m in iter_modules(providers.__path__)):
        try:
            module: Any = import_module(f"farm.providers.{name}")
        except Exception:
            out[name] = ""  # its step reports why
            continue
        if hasattr(module, "NAME"):
            distribution = module.DISTRIBUTION or ""
            ours = distribution == kernel_package.DISTRIBUTION and kernel_package.folder() is not None
            out[name] = "" if distribution == "torch" or ours else distribution
    return out


def space(path: str | Path) -> SpaceFacts:
    """Whether `path` can be written, tried in the nearest folder that exists; leaves nothing behind."""
    there = Path(path).absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        if not there.is_dir():
            return SpaceFacts(str(path), failure=f"{there} is not a folder")
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"x")
            file.flush()
        usage = shutil.disk_usage(there)
    except OSError as error:
        return SpaceFacts(str(path), failure=error.strerror or str(error))
    return SpaceFacts(str(path), usage.free, usage.total)


def _silent(where: str) -> str | None:
    try:
        return address.silent(*address.parse(where, "it"), seconds=2.0)
    except FarmError:
        return "the value is not a HOST:PORT"


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _first(*names: str | None) -> str | None:
    return next((path for n in names if n and (path := shutil.which(n.split()[0]))), None)
