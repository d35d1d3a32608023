"""What a mutant is, and the list of them all: one name, one sentence, and where it has to show.

A mutant has *places*: its ops, operations and dtypes.  In each at least one planned cell must end in a finding, but

    right_in    in these dtypes the mutation is no fault, and no cell may accuse it
    unseen_in   in these it is one below what any gate can hold against a correct kernel; nothing is claimed

and `note` says why.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from norm_steps import Norm

RMS, FUSED = "rms_norm", "fused_add_rms_norm"
BOTH = (RMS, FUSED)
FLOAT32, FLOAT16, BFLOAT16 = "float32", "float16", "bfloat16"
EVERY = (FLOAT32, FLOAT16, BFLOAT16)
NARROW = (FLOAT16, BFLOAT16)


@dataclass(frozen=True)
class Mutant:
    """A wrong kernel.  `functions` gives the provider's function of an op; it is called once per mutant and op, so that
    a mutant may remember its earlier calls as a process does."""

    name: str
    wrong: str
    functions: Callable[[str], Callable[..., Any]]
    ops: tuple[str, ...] = BOTH
    operations: tuple[str, ...] = ("forward",)
    right_in: tuple[str, ...] = ()
    unseen_in: tuple[str, ...] = ()
    modes: tuple[str, ...] = ("auto",)
    made: str = "torch"  # or "triton": a line of our kernels' source rewritten
    note: str = ""

    @property
    def dtypes(self) -> tuple[str, ...]:
        """In which it must be caught."""
        return tuple(d for d in EVERY if d not in self.right_in + self.unseen_in)

    @property
    def places(self) -> list[tuple[str, str, str]]:
        """(op, operation, dtype): in each of these it must be caught."""
        return list(itertools.product(self.ops, self.operations, self.dtypes))


TORCH: list[Mutant] = []


def mutant(
    *operations: str,
    ops: tuple[str, ...] = BOTH,
    right_in: tuple[str, ...] = (),
    unseen_in: tuple[str, ...] = (),
    note: str = "",
) -> Callable[[type[Norm]], type[Norm]]:
    """Register a `Norm` with a step replaced.  Its name is the class's, what is wrong the docstring's."""

    def register(made: type[Norm]) -> type[Norm]:
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", made.__name__).lower()
        wrong = " ".join((made.__doc__ or "").split()).rstrip(".")
        TORCH.append(
            Mutant(name, wrong, lambda op: made().function(op), ops, operations, right_in, unseen_in, note=note)
        )
        return made

    return register
