"""Children that are started before their run is planned: they import torch while `farm run` imports all that it needs.

Whether a run will want such a child is guessed from its words alone, since what would know it is what takes long to
import.  A wrong guess costs a process that is ended unused: a run takes the child only if the environment is exactly
the one that it would start its own with, and the child proves that it has imported nothing of the user's
(`farm.actor.waiting`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

#: Options with which children have another environment, or the run none of its own, or several.
_OTHERWISE = ("--watch", "--sandbox", "--sanitize", "--environment", "--plan", "--wheel", "--release", "--help", "-h")
#: What a host has in /dev for an accelerator of one of our backends; "" for one whose children cannot wait.
_ACCELERATORS = {"nvidiactl": "cuda", "kfd": "rocm", "davinci_manager": ""}
_BACKENDS = ("cpu", "cuda", "rocm")
#: So many children are started at most: all import at once.
MOST = 8


def backend(words: Sequence[str], environ: Mapping[str, str], devices: Path = Path("/dev")) -> str:
    """The backend of a `farm run` of these words that will be on this host alone; "" where that is not clear."""
    named = {"--backend": "", "--address": environ.get("FARM_ADDRESS", "").strip()}
    reads = False
    for at, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option in _OTHERWISE:
            return ""
        if option in named:
            named[option] = value if equals else "".join(words[at + 1 : at + 2])
        reads = reads or option == "--failed" or (word.endswith((".yaml", ".yml")) and Path(word).is_file())
    if not reads or named["--address"] not in ("", "inline"):
        return ""
    if named["--backend"]:
        return named["--backend"] if named["--backend"] in _BACKENDS else ""
    there = {backend for name, backend in _ACCELERATORS.items() if (devices / name).exists()}
    return there.pop() if len(there) == 1 else "" if there else "cpu"


def count(backend: str, words: Sequence[str], environ: Mapping[str, str], devices: Path = Path("/dev")) -> int:
    """How many children such a run will want at once: for each GPU of NVIDIA's one, for anything else one."""
    if backend != "cuda":
        return 1
    found = sum(bool(re.fullmatch(r"nvidia\d+", entry.name)) for entry in devices.iterdir())
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        found = min(found, len([name for name in visible.split(",") if name.strip()]))
    for at, word in enumerate(words):
        option, equals, value = word.partition("=")
        value = value if equals else "".join(words[at + 1 : at + 2])
        if option == "--devices" and value.isdecimal():
            found = min(found, int(value))
    return max(1, min(found, MOST, (os.cpu_count() or 2) // 2))


@contextmanager
def child(words: Sequence[str]) -> Iterator[None]:
    """As long as this lasts, a run of this process may take the children that were started at the beginning."""
    with ExitStack() as stack:
        wanted = backend(words, os.environ)
        if wanted:
            from farm.node import config

            if not os.environ.get(config.VARIABLE) and not config.DEFAULT_FILE.is_file():  # the node has no other
                from farm import backends
                from farm.actor import compile_ahead, waiting
                from farm.node.environment import Environment, child_variables

                environment = Environment.default()
                env = child_variables(backends.get(wanted).child_env("0"), environment)
                devices = count(wanted, words, os.environ)
                off = os.environ.get(compile_ahead.VARIABLE, "").strip() == "0" or not backends.get(wanted).ACCELERATOR
                each = 1 if off or not compile_ahead.workers(compile_ahead.cores(), devices) else 2  # one compiles
                stack.enter_context(waiting.waiting(once=True)).expect(wanted, env, environment, each * devices)
        yield
