"""Whether the launches of a graph compute from their inputs, or hand out what they were given once.

A call that keeps answers by address computes in the warm-up and puts no more than a copy into the graph; its outputs
are right for as long as the inputs stay.  So they are overwritten in place, and the graph is replayed once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from farm.child.findings import REMEMBERED
from farm.child.permuted_inputs import alike
from farm.child.provider_call import Problem
from farm.child.timing.common import Bench, call_of, differ


def remembered(bench: Bench, graph: Any, launches: Iterable[tuple[Problem, Sequence[Any]]]) -> list[str]:
    """The finding, where one of `launches` (a buffer set and the outputs of a launch over it) does not follow its
    inputs.  The sets hold other values afterwards.

    Forward: the set gets other values, and what the launch then writes is compared with a call over those values
    elsewhere.  Backward: its forward ran before the capture, so only the upstream gradients are another's: negated,
    which negates every gradient.
    """
    for problem, outputs in launches:
        mine = [t.detach() for t in outputs if isinstance(t, torch.Tensor)]
        if problem.operation == "backward":
            expected = [t.neg() for t in mine]
            with torch.no_grad():
                for upstream in problem.upstream:
                    upstream.neg_()
        else:
            new = bench.other(1) if bench.other else None
            if new is None or not differ(problem, new):
                continue
            expected = [t.detach() for t in call_of(bench, new)() if isinstance(t, torch.Tensor)]
            with torch.no_grad():
                for old, other in zip([*problem.inputs, *problem.upstream], [*new.inputs, *new.upstream]):
                    if old is not None:
                        old.copy_(other)
        bench.api.synchronize(bench.device)
        graph.replay()
        bench.api.synchronize(bench.device)
        if len(expected) != len(mine) or not all(alike(a, b) for a, b in zip(expected, mine)):
            return [REMEMBERED]
    return []
