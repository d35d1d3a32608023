"""How this node evaluates references that are PyTorch functions: in its environment `reference`, else in `default`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from farm.contracts.discovery import own_torch
from farm.node import config as nodes
from farm.node.config import NodeConfig
from farm.node.environment import Environment, child_variables, filled
from farm.process import command
from farm.process.own_modules import module_words
from farm.shipping import bundle

if TYPE_CHECKING:
    from farm.judge.references import ReferenceCommand

NAME = "reference"
VERSION_SECONDS = 60.0
_VERSION = ("-c", "from importlib import metadata\ntry: print(metadata.version('torch'))\nexcept Exception: print('')")


def environment(config: NodeConfig) -> Environment:
    """The environment that evaluates references here.  UsageError for one whose interpreter is missing."""
    return nodes.environment(config, NAME if NAME in config.environments else "default")


def torch_version(config: NodeConfig) -> str:
    """Of the torch in that environment, without importing it; "" if it has none."""
    found = environment(config)
    if found.own:
        return own_torch()
    try:
        done = command.run(_words(found, _VERSION, ""), VERSION_SECONDS, env=child_variables({}, found))
    except OSError:
        return ""
    return (done.out.strip().splitlines() or [""])[-1] if done.code == 0 else ""


def reference_command(config: NodeConfig, spool: str) -> ReferenceCommand | None:
    """How judges of a run start the process, whose folder is `spool`; None where their own Python does."""
    from farm.judge.references import MODULE, ReferenceCommand  # here: a plan needs no judge

    found = environment(config)
    if found.own:
        return None
    place = Path(spool, "bundles")
    farm = next(b for b in bundle.pack_all() if b.name == "farm")
    path = (str(bundle.install(farm.sha, farm.blob, place)), *found.path)
    variables = {**child_variables({}, found), "PYTHONPATH": os.pathsep.join(path)}
    start = module_words(MODULE)[1:]
    return ReferenceCommand(tuple(_words(found, start, spool, variables["PYTHONPATH"])), variables)


def leave(spool: str) -> None:
    """Leave for the judges of a run, in its folder, how they start the process."""
    found = reference_command(nodes.load(), spool)
    if found:
        found.leave(spool)


def _words(found: Environment, start: Sequence[str], spool: str, path: str = "") -> list[str]:
    places: dict[str, str | Sequence[str]] = {
        "python": sys.executable,
        "path": path,
        "spool": spool,
        "device": "0",
        "name": f"farm-reference-{os.getpid()}",
        "uid": str(os.getuid()),
        "gid": str(os.getgid()),
        "child": start,
        "env": ["--env", f"PYTHONPATH={path}"] if path else [],
    }
    return filled(found.words(), places)
