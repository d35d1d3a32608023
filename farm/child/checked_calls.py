"""The calls of a cell whose answers are proven: the first over its own values, then over others at the same addresses.

Each runs under poisoned allocations with its launches recorded; what it does beside its answer becomes a finding
(`farm.child.findings`).  All outputs stay alive until the end, so that memory that is handed out twice shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from farm.child import permuted_inputs, placing, poison, provider_call, tensor_files
from farm.child.launch_recorder import LaunchRecorder
from farm.errors import WrongAnswer

Source = Callable[[dict[str, Any]], torch.Tensor]
#: For so long (in cycles, 50 ms at 2 GHz) other streams are held up to see whether a call's own stream waits for them.
_STALL_CYCLES = 100_000_000
#: As many streams as torch keeps in its pool: a call that takes "a new one" takes one of these.
_POOL = 32


class CheckedCalls:
    """Checked calls over one set of buffers.  `plans`: the cell's tensors as the child is told of them; `source`: a
    tensor's own values, only to be read."""

    def __init__(
        self,
        device: torch.device,
        plans: list[dict[str, Any]],
        problem: provider_call.Problem,
        source: Source,
        synchronize: Callable[[], None],
    ):
        self.device = device
        self.problem = problem
        self.launches = LaunchRecorder()
        self.findings: list[str] = []
        self._plans = plans
        self._source = source
        self._synchronize = synchronize
        self._expected = provider_call.judged(plans)
        self._kept: list[tuple[torch.Tensor, ...]] = []
        self._home = 0 if device.type == "cpu" else poison.handle(self._api.current_stream(device))
        self._elsewhere: set[int] = set()  # handles of other streams that some call worked on
        self._last: set[int] = set()  # that the last one did
        self._works: list[Counter[str]] = []
        self._laid_out = any(p.get("layout") or p.get("leading") for p in plans)

    @property
    def _api(self) -> Any:
        return torch.get_device_module(self.device.type)

    def first(self, function: Callable[..., Any]) -> tuple[torch.Tensor, ...]:
        """The outputs over the cell's own values.  WrongAnswer for what is no answer at all."""
        guarded = self._guarded()
        before = _seen(guarded)
        self._call(function)
        if before != _seen(guarded):
            self.findings.insert(0, "changed its inputs")
        if self._elsewhere:
            self._note(f"works on {len(self._elsewhere)} other stream{'s' if len(self._elsewhere) > 1 else ''}")
        return self._kept[0]

    def others(self, function: Callable[..., Any], *, stranger: bool) -> tuple[torch.Tensor, ...] | None:
        """Call again over other values; the outputs as they would be of the cell's own where they are not bit for bit
        what the first ones let expect, for the judge to say which is right; else None.

        `stranger`: code that the farm did not bring; where nothing was called before `first` (on a CPU), such code is
        called once more over the same values, to see whether it remembers them.
        """
        how = permuted_inputs.change(self._plans, 1)
        if not how.any:
            return None
        self._refill(how)
        if self._elsewhere:
            self._stalled(lambda: self._call(function))
        else:
            self._call(function)
        wrong = not all(
            map(permuted_inputs.as_expected, self._expected, self._kept[0], self._kept[1], [how] * len(self._expected))
        )
        found = (
            tuple(permuted_inputs.restored(p, t, how) for p, t in zip(self._expected, self._kept[1])) if wrong else None
        )
        self._remembers(function, how, stranger)
        return found

    def alone(self, function: Callable[..., Any]) -> None:
        """A finding where a row in the middle has other bits when it is called alone.  After `first`."""
        pairs = self._pairs()
        rows = max(
            (p["shape"][0] for p, t in pairs if t is not None and p.get("blocked", True) and p["shape"]), default=0
        )
        if rows < 2:
            return
        row = rows // 2
        made: dict[int, torch.Tensor] = {}
        for plan, tensor in pairs:
            if tensor is not None:
                own = self._source(plan)
                own = own[row : row + 1] if plan.get("blocked", True) and plan["shape"] else own
                made[id(tensor)] = own.clone().requires_grad_(tensor.requires_grad)
        inputs = [None if t is None else made[id(t)] for t in self.problem.inputs]
        upstream = [made[id(t)] for t in self.problem.upstream]
        wrt = [made[id(t)] for t in self.problem.wrt]
        got = self._plain(provider_call.Problem(inputs, upstream, wrt, self.problem.operation).run(function))
        self._synchronize()
        for plan, output, batch in zip(self._expected, got, self._kept[0]):
            blocked = plan.get("blocked", True) and plan["shape"]
            if blocked and not permuted_inputs.as_expected(plan, batch[row : row + 1], output, permuted_inputs.SAME):
                self._note(f"gives row {row} of {plan['name']} other bits alone than in its batch")

    def _remembers(self, function: Callable[..., Any], how: permuted_inputs.InputChange, stranger: bool) -> None:
        """A finding where values that were seen before take another path than new ones, twice."""
        if self.device.type != "cpu":  # `first` was not the first call with its values
            suspicious = self._works[0] != self._works[1]
            seen = permuted_inputs.SAME
        elif stranger:
            seen = how
            self._refill(seen)
            self._call(function)
            suspicious = self._works[2] != self._works[1]
        else:
            return
        if not suspicious:
            return
        self._refill(seen)  # once more: what was made at a first call is made now
        self._call(function)
        again = self._works[-1]
        self._refill(permuted_inputs.change(self._plans, 2))
        self._call(function)
        if again != self._works[-1]:
            ran = ", ".join(sorted((self._works[-1] - again) | (again - self._works[-1]))[:3])
            self._note(f"takes another path on values from an earlier call ({ran})")

    def _call(self, function: Callable[..., Any]) -> None:
        """One call; its outputs, its findings and what it asked of the device are kept."""
        sizes = [tensor_files.DTYPES[p["dtype"]].itemsize * _elements(p["shape"]) for p in self._expected]
        poison.poison_freed(self.device, sizes)
        mode = poison.Poisoned(self.device)
        launches = LaunchRecorder()
        with launches, mode:
            got = self.problem.run(function)
            self._synchronize()
        poison.forget_skipped_frames()
        if not self._works:
            self.launches = launches
        self._last = (mode.streams | launches.streams) - {self._home}
        self._elsewhere |= self._last
        self._works.append(mode.work + (launches.seen or Counter()))
        for finding in [*mode.broken(), *sorted(self.problem.findings)]:
            self._note(finding)
        outputs = self._plain(got)
        # not gradients: one that is an upstream gradient unchanged is handed on by autograd as it is
        named = [(p["name"], t) for p, t in zip(self._expected, outputs) if p["role"] == "output"]
        earlier = [t for kept in self._kept for t in kept]
        for finding in [
            *permuted_inputs.shared(named, self._guarded()),
            *permuted_inputs.returned_again(outputs, earlier),
        ]:
            self._note(finding)
        # what lies in an input that the contract gives up is overwritten by the next call's values
        taken = {permuted_inputs.memory(t) for _, t in self._pairs() if t is not None}
        kept = (t.clone() if permuted_inputs.memory(t) in taken else t for t in outputs)
        self._kept.append(tuple(map(placing.with_rows, self._expected, kept)))

    def _stalled(self, call: Callable[[], None]) -> None:
        """Call while every other stream is held up: work there that the call's own stream does not wait for is late."""
        api = self._api
        if not hasattr(api, "_sleep") or not hasattr(api, "ExternalStream"):
            call()
            return
        known = [api.ExternalStream(s, device=self.device) for s in self._elsewhere if s]
        for stream in [*known, *(api.Stream(self.device) for _ in range(_POOL))]:
            with api.stream(stream):
                api._sleep(_STALL_CYCLES)
        synchronize, self._synchronize = self._synchronize, lambda: None
        try:
            call()
        finally:
            self._synchronize = synchronize
        done = api.Event()
        done.record()
        done.synchronize()
        late = any(not api.ExternalStream(s, device=self.device).query() for s in self._last if s)
        self._synchronize()
        if late:
            self._note("left work on another stream, but the caller's stream does not wait for that stream")

    def _refill(self, how: permuted_inputs.InputChange) -> None:
        permuted_inputs.refill(self._pairs(), self._source, how)

    def _pairs(self) -> list[tuple[dict[str, Any], torch.Tensor | None]]:
        """Inputs and upstream gradients with their plans."""
        inputs = [p for p in self._plans if p["role"] in ("input", "mutated")]
        upstreams = [p for p in self._plans if p["role"] == "upstream"]
        return [*zip(inputs, self.problem.inputs), *zip(upstreams, self.problem.upstream)]

    def _guarded(self) -> list[tuple[str, torch.Tensor]]:
        """Tensors that a call must leave as they are: inputs and upstream gradients, but what the contract gives up."""
        kept = [(p, t) for p, t in self._pairs() if not p.get("may_overwrite") and p["role"] != "mutated"]
        return [(p["name"], t) for p, t in kept if t is not None]

    def _note(self, finding: str) -> None:
        if finding not in self.findings:
            self.findings.append(finding)

    def _plain(self, got: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """Outputs as plain tensors on the right device; anything else is the provider's wrong answer."""
        if len(got) != len(self._expected):
            names = ", ".join(p["name"] for p in self._expected)
            many = f"{len(got)} tensor{'' if len(got) == 1 else 's'}"
            raise WrongAnswer(f"returned {many}, but {len(self._expected)} expected ({names})")
        for value, want in zip(got, self._expected):
            name = want["name"]
            if type(value) not in (torch.Tensor, torch.nn.Parameter):
                raise WrongAnswer(f"{name} is a {type(value).__name__}, not a torch.Tensor")
            if value.device.type != self.device.type:
                raise WrongAnswer(f"{name} is on {value.device}, not on {self.device}")
            if value.layout is not torch.strided:
                raise WrongAnswer(f"{name} has the layout {value.layout}, not torch.strided")
            if any(stride == 0 and size > 1 for stride, size in zip(value.stride(), value.shape)):
                raise WrongAnswer(f"{name} has strides {list(value.stride())}: several elements share one address")
            if not value.is_contiguous() and not self._laid_out:  # as outputs of inputs that are not may be
                self._note(f"{name} is not contiguous (strides {list(value.stride())})")
        return tuple(v.detach() for v in got)


def _seen(guarded: Sequence[tuple[str, torch.Tensor]]) -> list[Any]:
    """What must be as it was: where each input lies, its shape, and all of its memory, also between its elements."""
    return [(permuted_inputs.memory(t), t.shape, tensor_files.checksum(placing.whole(t))) for _, t in guarded]


def _elements(shape: Sequence[int]) -> int:
    n = 1
    for size in shape:
        n *= size
    return n
