"""How a provider is called: arguments in the contract's order, and what each operation runs."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from farm import kernel_package
from farm.child import subject_files
from farm.errors import Unsupported, WrongAnswer


def resolve(spec: dict[str, Any], op: str) -> Callable[..., Any]:
    """The provider's callable: `builtin` by name, or somebody's own `module:function`, shipped as files or importable.

    A module that is missing here and NotImplementedError become `Unsupported`.  Whatever else a subject's module raises
    is its crash, an import that fails inside its own package too: a broken kernel package is not an absent one.
    """
    if spec.get("subject") and subject_files.placed.missing:
        raise Unsupported(f"subject {spec['subject']}: {subject_files.placed.missing}")
    try:
        if spec.get("path"):
            return _own(spec["path"])
        module = importlib.import_module(f"farm.providers.{spec['name']}")
        loaded: Callable[..., Any] = module.load(op)
        return loaded
    except NotImplementedError as error:
        raise Unsupported(f"provider {spec['name']}: {error}") from error
    except ImportError as error:
        peer = not spec.get("path") and spec["name"] != "farm"
        if _absent(error, spec) or peer:
            raise Unsupported(f"provider {spec['name']}: {error}") from error
        raise


def _absent(error: ImportError, spec: dict[str, Any]) -> bool:
    """Whether an import failed because this Python lacks the module, and not because a subject's own package is
    broken."""
    path = str(spec.get("path") or "").split(":")[0].split(".")[0]
    own = {*subject_files.placed.modules, "kernels", kernel_package.INSTALLED, "farm", path}
    return isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] not in own


def lazily_importing(function: Callable[..., Any], spec: dict[str, Any]) -> Callable[..., Any]:
    """`function`, which may import only when it is called: a module that is missing then is `Unsupported` as well."""

    def called(*inputs: Any) -> Any:
        try:
            return function(*inputs)
        except ModuleNotFoundError as error:
            if _absent(error, spec):
                raise Unsupported(f"provider {spec['name']}: {error}") from error
            raise

    return called


def _own(path: str) -> Callable[..., Any]:
    module, _, function = path.partition(":")
    found: Any = importlib.import_module(module)
    for part in function.split("."):
        found = getattr(found, part)
    return found


def with_backward(
    forward: Callable[..., Any], backward: Callable[..., Any], call: dict[str, Any], tensors: Sequence[dict[str, Any]]
) -> Callable[..., Any]:
    """`forward`, whose gradients `backward` gives instead of autograd, as one function of the input tensors.

    `backward(upstream, inputs, outputs, *positional parameters, **keywords)`: `upstream` are the outputs' gradients and
    `inputs` the input tensors, both in the contract's order; `outputs` is all that the forward returned, so also what
    it returned beyond the contract's outputs to save it for this call.  It returns the gradients in the contract's
    order.  `tensors`: the plan of the cell's tensors.
    """
    bound, arguments = bind(forward, call), bind(backward, call)
    names = [t["name"] for t in tensors if t["role"] in ("input", "mutated")]
    roles = [t["role"] for t in tensors]
    count = roles.count("output") or roles.count("upstream")  # a cell of the backward alone has no outputs of its own
    asked = [names.index(t["of"]) for t in tensors if t["role"] == "gradient"]

    class OwnBackward(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            out = bound(*inputs)
            ctx.outputs = tuple(out) if isinstance(out, (tuple, list)) else (out,)
            ctx.inputs = inputs
            first = ctx.outputs[:count]
            return first[0] if len(first) == 1 else first

        @staticmethod
        def backward(ctx: Any, *upstream: Any) -> Any:
            given = arguments(upstream, ctx.inputs, ctx.outputs)
            found = tuple(given) if isinstance(given, (tuple, list)) else (given,)
            if len(found) != len(asked):
                raise WrongAnswer(f"the provider's backward returned {len(found)} gradients, but {len(asked)} expected")
            out: list[Any] = [None] * len(names)
            for place, gradient in zip(asked, found):
                out[place] = gradient
            return tuple(out)

    def called(*inputs: Any) -> Any:
        return OwnBackward.apply(*inputs)

    return called


def bind(function: Callable[..., Any], call: dict[str, Any]) -> Callable[..., Any]:
    """`function` with its parameters bound: what is left takes the input tensors.

    call = {"positional": [...], "keywords": {...}, "optional": {...}}: `keywords` are needed (a function that does not
    take one is `Unsupported`), `optional` ones are passed only to a function that takes them.
    """
    keywords = dict(call.get("keywords", {}))
    accepted = _accepted(function)
    for name in keywords:
        if accepted is not None and name not in accepted:
            raise Unsupported(f"the provider's function takes no parameter {name} (needed: {name}={keywords[name]!r})")
    for name, value in call.get("optional", {}).items():
        if accepted is None or name in accepted:
            keywords[name] = value
    positional = list(call.get("positional", []))

    def bound(*inputs: Any) -> Any:
        return function(*inputs, *positional, **keywords)

    return bound


def _accepted(function: Callable[..., Any]) -> set[str] | None:
    """Names of keyword parameters, or None where anything goes or nothing can be known."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}


@dataclass
class Problem:
    """One set of a cell's tensors on the device and what to do with it.

    `inputs` in the contract's order (None for an absent weight); `upstream` are the outputs' fixed gradients;
    `wrt` the inputs whose gradients are asked for, in the order of the gradient tensors.  `findings`: what a call did
    that shows only while it runs (the next caller's grad mode is put back on the way out).  `mutated`: those of the
    inputs whose values after the call are judged; `returns`: whether the op gives anything else.
    """

    inputs: list[Any]
    upstream: list[torch.Tensor]
    wrt: list[torch.Tensor]
    operation: str
    findings: set[str] = field(default_factory=set)
    mutated: list[torch.Tensor] = field(default_factory=list)
    returns: bool = True

    def forward(self, function: Callable[..., Any]) -> tuple[Any, ...]:
        """The outputs, as a tuple, with grad enabled unless the operation says otherwise."""
        wanted = self.operation != "no-grad-forward"
        with torch.set_grad_enabled(wanted):
            out = function(*self.inputs)
            if torch.is_grad_enabled() != wanted:
                self.findings.add(f"changed torch's grad mode from {wanted} to {not wanted}")
        return tuple(out) if isinstance(out, (tuple, list)) else (out,)

    def gradients(self, outputs: Sequence[Any], *, retain: bool = False) -> tuple[torch.Tensor, ...]:
        """d outputs / d wrt for the upstream gradients; None where no output depends on an input.

        Among several outputs one without a graph passes nothing on, which the judge will see; where none has one, there
        is no backward.
        """
        heads = list(outputs)[: len(self.upstream)]
        if len(heads) < len(self.upstream):
            raise WrongAnswer(f"returned {len(heads)} outputs, but {len(self.upstream)} expected")
        for head, dy in zip(heads, self.upstream):
            if not isinstance(head, torch.Tensor):
                raise WrongAnswer(f"the output is a {type(head).__name__}, not a torch.Tensor")
            if head.shape != dy.shape or head.dtype != dy.dtype:
                got, want = (f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for t in (head, dy))
                raise WrongAnswer(f"the output is {got}, expected {want}")
        learned = [(head, dy) for head, dy in zip(heads, self.upstream) if head.requires_grad]
        if not learned:
            raise Unsupported("the output has no autograd graph, so backward cannot run")
        found: tuple[torch.Tensor, ...] = torch.autograd.grad(
            [head for head, _ in learned], self.wrt, [dy for _, dy in learned], retain_graph=retain, allow_unused=True
        )
        return found

    def run(self, function: Callable[..., Any]) -> tuple[Any, ...]:
        """Everything that the operation gives: the contract's outputs in their order, then gradients, then the inputs
        that it overwrites.  What an op returns that only overwrites (its input, mostly) is not looked at."""
        outputs = self.forward(function)
        if self.operation == "backward":
            found = self.gradients(outputs)
        elif self.operation == "full":
            found = (*outputs, *self.gradients(outputs))
        else:
            found = outputs if self.returns else ()
        return (*found, *self.mutated)


def judged(plans: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The plans of what `Problem.run` gives, in its order."""
    made = [p for p in plans if p["role"] in ("output", "gradient")]
    return [*made, *(p for p in plans if p["role"] == "mutated")]


def problem(plans: Sequence[dict[str, Any]], operation: str, load: Callable[[dict[str, Any]], torch.Tensor]) -> Problem:
    """A fresh set of a cell's tensors; `load` gives a fresh one of a plan's values."""
    inputs: list[Any] = []
    upstream: list[torch.Tensor] = []
    by_name: dict[str, torch.Tensor] = {}
    for plan in plans:
        if plan["role"] in ("input", "mutated") and plan.get("file"):
            by_name[plan["name"]] = load(plan)
            inputs.append(by_name[plan["name"]])
        elif plan["role"] == "input":
            inputs.append(None)
        elif plan["role"] == "upstream":
            upstream.append(load(plan))
    overwritten = [p["name"] for p in plans if p["role"] == "mutated"]
    if operation != "no-grad-forward":
        for name, tensor in by_name.items():
            if tensor.dtype.is_floating_point and name not in overwritten:  # autograd refuses to write to a leaf
                tensor.requires_grad_(True)
    wrt = [by_name[p["of"]] for p in plans if p["role"] == "gradient"]
    returns = any(p["role"] == "output" for p in plans) or not overwritten
    return Problem(inputs, upstream, wrt, operation, mutated=[by_name[name] for name in overwritten], returns=returns)
