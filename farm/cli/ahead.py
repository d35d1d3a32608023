"""A child that is started before its run is planned: it imports torch while `farm run` imports all that a run needs.

Whether a run will want such a child is guessed from its words alone, since what would know it is what takes long to
import.  A wrong guess costs a process that is ended unused: a run takes the child only if the environment is exactly
the one that it would start its own with, and the child proves that it has imported nothing of the user's
(`farm.actor.waiting`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

#: Options with which children have another environment, or the run none of its own, or several.
_OTHERWISE = ("--watch", "--sandbox", "--sanitize", "--environment", "--plan", "--wheel", "--release", "--help", "-h")
#: What a host has in /dev for an accelerator of one of our backends.
_ACCELERATORS = ("nvidiactl", "kfd", "davinci_manager")
_BACKENDS = ("cpu", "cuda", "rocm")


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
    return "" if any((devices / name).exists() for name in _ACCELERATORS) else "cpu"


@contextmanager
def child(words: Sequence[str]) -> Iterator[None]:
    """As long as this lasts, a run of this process may take the child that was started at the beginning."""
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
                off = os.environ.get(compile_ahead.VARIABLE, "").strip() == "0"
                many = (
                    not off and backends.get(wanted).ACCELERATOR and compile_ahead.workers(compile_ahead.cores(), 1) > 0
                )
                count = 2 if many else 1  # one compiles for the other
                stack.enter_context(waiting.waiting(once=True)).expect(wanted, env, environment, count)
        yield
