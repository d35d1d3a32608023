"""What `farm nodes join` and `farm nodes head` run: `ray start` with labels, resources and settings.  Pure.

It turns the facts of the host into a command with its environment, which is executed, printed for a shell, or put into
a batch script.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from farm import backends
from farm.errors import UsageError
from farm.node.masks import MASKS, without_rocr

PORT = 6379
ROCR_NOTE = "Ray rejects ROCR_VISIBLE_DEVICES without HIP_VISIBLE_DEVICES on a node with AMD devices"
NODE_OPEN = "no token: anyone who can reach the ports of this node can run code on this node"
HEAD_OPEN = "no token: anyone who can reach this port can run code on every node"
#: Settings of every Ray process of a farm, unless the environment sets others.  Python must match to the patch, since
#: actors' calls are pickled; processes that an actor started die with it, even if it was killed; a node that must end
#: does so at once, since only `farm nodes drain` knows what its devices are working on.
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "patch",
    "RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper": "true",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
}
#: A node that froze or lost its network is given up after 4 x (2 + 5) s instead of Ray's 65.  Not sooner: with
#: 3 x (1 + 2) s, a host with twice as many busy processes as processors once declared its own living head dead, and Ray
#: ended the run's process.
HEALTH = {
    "RAY_health_check_initial_delay_ms": "5000",
    "RAY_health_check_period_ms": "2000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "4",
}
#: Variables that a node passes on to its actors; printed with the command so that another shell has them too.
PASSED_ON = (
    "FARM_NODE",
    "FARM_LOCKS",
    "FARM_CACHE",
    "PYTHONPATH",
    "RAY_TMPDIR",
    "RAY_USE_TLS",
    "RAY_TLS_SERVER_CERT",
    "RAY_TLS_SERVER_KEY",
    "RAY_TLS_CA_CERT",
)
#: The name or the value of a label, as Kubernetes and Ray define it.
LABEL_WORD = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True)
class RayStart:
    """A command to be executed in place of this process, and how its environment differs from this process's."""

    words: tuple[str, ...]
    variables: Mapping[str, str | None] = field(default_factory=dict)  # None: unset
    notes: tuple[str, ...] = ()
    folder: str = ""  # around Ray's; to be made before, closed to other users

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """All variables of the command."""
        out = {k: v for k, v in environ.items() if k not in self.variables}
        return out | {k: v for k, v in self.variables.items() if v is not None}

    def shell(self) -> list[str]:
        """Lines for a shell, which need no further preparation."""
        return [
            *(f"# {note}" for note in self.notes),
            *(f"unset {k}" if v is None else f"export {k}={shlex.quote(v)}" for k, v in self.variables.items()),
            *([f"mkdir -p -m 700 {shlex.quote(self.folder)}"] if self.folder else []),
            " ".join(map(shlex.quote, self.words)),
        ]


@dataclass(frozen=True)
class JoiningHost:
    """What a join knows about its host."""

    backend: str
    name: str  # of the node
    machine: str = ""  # its host's name, if the node has another
    devices: int = 0
    model: str = ""  # of the devices, if all are the same
    partition: str = ""
    driver: str = ""
    version: str = ""  # of the farm
    protocol: str = ""  # likewise
    labels: Mapping[str, str] = field(default_factory=dict)  # further ones, without the prefix
    simulated: bool = False


def join(
    host: JoiningHost, head: str, ray: Sequence[str], environ: Mapping[str, str], token_path: str = "", folder: str = ""
) -> RayStart:
    """`ray start` of a node that has `host.devices` devices.

    head: HOST:PORT.  ray: the words that run Ray's command line.  environ: this process's.  token_path: "" for none.
    folder: as in `RayStart`.  Raises UsageError for a label that Ray would reject.
    """
    words = [*ray, "start", f"--address={head}", f"--labels={_labels(host)}"]
    words += _resources(host)
    words += _temporary(folder)
    words += ["--disable-usage-stats", "--block"]
    variables = {**_settings(SETTINGS, environ), **authentication(token_path), **_passed_on(environ)}
    notes = []
    if host.backend == "rocm" and (fixed := without_rocr(environ)):
        variables |= fixed
        notes.append(ROCR_NOTE)
    if host.backend == "cuda":
        variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as nvidia-smi and the locks number them
    mask = MASKS.get(host.backend, "")
    if mask in environ and mask not in variables:
        variables[mask] = environ[mask]
    if not token_path:
        notes.append(NODE_OPEN)
    return RayStart(tuple(words), variables, tuple(notes), folder)


def head(
    port: int,
    ray: Sequence[str],
    environ: Mapping[str, str],
    token_path: str = "",
    address: str = "",
    cpus: int | None = None,
    folder: str = "",
) -> RayStart:
    """`ray start` of a head without devices of the farm: it runs coordinators and the registry of nodes.  `token_path`
    and `folder` as for `join`."""
    words = [*ray, "start", "--head", f"--port={port}", "--num-gpus=0", "--labels=farm/role=head"]
    words += [f"--num-cpus={cpus}"] if cpus is not None else []
    words += [f"--node-ip-address={address}"] if address else []
    words += _temporary(folder)
    words += ["--include-dashboard=false", "--disable-usage-stats", "--block"]
    settings = _settings({**SETTINGS, **HEALTH}, environ)
    variables = {**settings, **authentication(token_path), **_passed_on(environ)}
    return RayStart(tuple(words), variables, () if token_path else (HEAD_OPEN,), folder)


def next_steps(token_path: str, head: str) -> tuple[str, ...]:
    """What the operator of a new head does next, as lines."""
    file = shlex.quote(token_path)
    return (
        f"the cluster's token is in {token_path} (mode 0600); copy this file, with its mode, to each node and to each "
        "host that starts runs; then:",
        f"  farm nodes join --backend BACKEND --head {head} --token-path {file}",
        f"  RAY_AUTH_TOKEN_PATH={file} farm run MATRIX --address {head}",
    )


def authentication(token_path: str) -> dict[str, str | None]:
    """RAY_AUTH_MODE, which is always set, and the file of the token, if there is one.

    Otherwise Ray would use a token file in the home folder, so that an earlier session could decide whether another
    command can join.  The token itself is never put into a command or a variable.
    """
    mode = {"RAY_AUTH_MODE": "token" if token_path else "disabled"}
    return {**mode, "RAY_AUTH_TOKEN_PATH": token_path or None, "RAY_AUTH_TOKEN": None}


def label_of(text: str) -> str:
    """Free text as a label's value: `AMD Instinct MI300X` is `AMD-Instinct-MI300X`."""
    words = re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-_.")
    return words[:63].strip("-_.")


def parse_label(text: str) -> tuple[str, str]:
    """`--label K=V`.  Raises UsageError for what Ray would reject, or what the farm sets."""
    key, equals, value = text.partition("=")
    key = key.removeprefix("farm/")
    if not (equals and LABEL_WORD.fullmatch(key) and LABEL_WORD.fullmatch(value)):
        raise UsageError(
            f'--label "{text}" is not KEY=VALUE of letters, digits, ".", "-" and "_" (at most 63 each), for example '
            "--label rack=r7",
            id="node-label",
        )
    if key in ("backend", "node"):
        what = f"--label {key}: the farm sets this label; use --{'name' if key == 'node' else key} instead"
        raise UsageError(what, id="node-label-reserved")
    return key, value


def _labels(host: JoiningHost) -> str:
    found = {"backend": host.backend, "node": label_of(host.name)}
    if host.machine and label_of(host.machine) != found["node"]:
        found["host"] = label_of(host.machine)
    found |= {k: v for k in ("model", "partition", "version", "protocol") if (v := label_of(getattr(host, k)))}
    if host.driver and label_of(host.driver) == host.driver:  # a changed version would be a different one
        found["driver"] = host.driver
    found |= dict(host.labels)
    for key, value in found.items():
        if not (LABEL_WORD.fullmatch(key) and LABEL_WORD.fullmatch(value)):
            what = f'the label {key}="{value}" is not valid for Ray: use at most 63 letters, digits and ".-_"'
            raise UsageError(what, id="node-label")
    return ",".join(f"farm/{k}={v}" for k, v in found.items())


def _resources(host: JoiningHost) -> list[str]:
    """The number of devices, always given to Ray, which would detect 0 without the vendor's Python package."""
    resource: Mapping[str, Any] = getattr(backends.get(host.backend), "RESOURCE", {"num_gpus": 1})
    name, each = next(iter(resource.items()))
    amount = int(each) * host.devices
    if name == "num_gpus":
        return [f"--num-gpus={amount}"]
    return ["--num-gpus=0", f"--resources={json.dumps({name: amount})}"]


def _temporary(folder: str) -> list[str]:
    return [f"--temp-dir={folder}/ray"] if folder else []


def _settings(ours: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str | None]:
    """The farm's settings, unless the operator has set others."""
    return {name: environ.get(name, value) for name, value in ours.items()}


def _passed_on(environ: Mapping[str, str]) -> dict[str, str | None]:
    return {k: environ[k] for k in PASSED_ON if environ.get(k)}
