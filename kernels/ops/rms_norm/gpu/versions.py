"""What the Triton that is here can do, from 3.2 (torch 2.6) on.  Measured and chosen was with 3.6; compiled, 2026-11,
with each minor version from 3.2 to 3.9 (docs/facts.md).

* Programmatic dependent launch, an instruction and a launch's word of sm_90 and later: before 3.5 there is none (3.4
  has names that do not work), and kernels are launched without.
* Stages: 3.2's compiler aborts where it pipelines a tile of three dimensions; there, loops have one stage.
"""

from __future__ import annotations

import inspect
from dataclasses import replace

import triton

from ..choice import Choice

VERSION = tuple(int(n) for n in triton.__version__.split(".")[:2])

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

    DEPENDENT_LAUNCH = "_semantic" in inspect.signature(gdc_wait).parameters
except ImportError:
    DEPENDENT_LAUNCH = False

if not DEPENDENT_LAUNCH:

    @triton.jit
    def gdc_wait():
        """Named in a branch that is never compiled then."""

    @triton.jit
    def gdc_launch_dependents():
        """As `gdc_wait`."""


def served(choice: Choice, version: tuple[int, ...] = VERSION, dependent_launch: bool = DEPENDENT_LAUNCH) -> Choice:
    """The choice as this Triton can launch it."""
    if version < (3, 3) and choice.num_stages > 1:
        choice = replace(choice, num_stages=1)
    if dependent_launch:
        return choice
    options = dict(choice.options)
    if not options.get("pdl"):
        return choice
    return replace(choice, options=tuple(sorted({**options, "pdl": False}.items())))
