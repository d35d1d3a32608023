"""Contracts and providers that the matrix tests bring along, so that an op's change does not change them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from farm.contracts.base import CellLike, Contract, Dimension, Parameter, Tensor
from farm.errors import FarmError, Message
from farm.matrix import Matrix, ProviderInfo, load_all

MODES = ("auto", "static_persistent", "multi_wave_reload", "multi_wave_cached")


class Norm(Contract):
    op = "norm"
    version = 3
    dimensions = (Dimension("rows", 0, 2**40), Dimension("hidden", 1, 2**30))
    parameters = (
        Parameter("eps", float, 1e-6, low=0.0, positional=True),
        Parameter("offset", float, 0.0),
        Parameter("casting", str, "llama", allowed=("llama", "gemma", "none"), semantic=False, in_id=True),
        Parameter("weight", bool, True, nullifies="weight"),
        Parameter("groups", int, 1, low=1, high=8),
        Parameter("note", str, ""),
    )
    typed = ("x", "weight")
    operations = ("forward", "backward")
    families = ("mixed", "outlier")
    layouts = {"x": ("row_strided", "3d", "4d"), "dx": ("row_strided", "3d")}

    def tensors(self, cell: CellLike) -> tuple[Tensor, ...]:
        """x; y forward, dx backward."""
        shape = (cell.dims["rows"], cell.dims["hidden"])
        made = ("y", "output") if cell.operation == "forward" else ("dx", "gradient")
        return tuple(Tensor(name, cell.dtypes["x"], shape, role) for name, role in (("x", "input"), made))

    def gates(self, cell: CellLike) -> dict[str, dict[str, float]]:
        """One of its own."""
        return {"y": {"clipped": 0.0}} if cell.operation == "forward" else {}


class Product(Contract):
    op = "product"
    dimensions = (Dimension("m", 0, 2**30), Dimension("k", 1, 2**30))
    typed = ("a",)


CONTRACTS = {"norm": Norm(), "product": Product()}
REGISTRY = {
    "farm": ProviderInfo("farm", "subject", MODES, ("norm",)),
    "torch": ProviderInfo("torch", "peer", ("auto",), ("norm", "product")),
    "liger": ProviderInfo("liger", "peer", ("auto",), ("norm",)),
}
WORLD: dict[str, Any] = {
    "contracts": CONTRACTS.__getitem__,
    "ops": ("norm", "product"),
    "registry": REGISTRY,
    "backends": ("ascend", "cpu", "cuda", "rocm", "sim"),
}

#: Each error test changes one thing of this; lines are counted from 1.
BASE = """\
name: m
op: norm
axes:
  shape:
    - {rows: 8, hidden: 64}
providers: [torch]
"""


def load_text(folder: Path, text: str | bytes, name: str = "m.yaml", **how: Any) -> list[Matrix]:
    """`text` written to a file and loaded in the fake world."""
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return load_all(path, **{**WORLD, **how})


def refusal(folder: Path, text: str | bytes, **how: Any) -> Message:
    """The one sentence with which `text` is refused, without the folder's name, and its identifier."""
    import pytest  # not above: another Python that plans this world need not have it

    with pytest.raises(FarmError) as caught:
        load_text(folder, text, **how)
    assert caught.value.exit_code == 2
    return sentence(caught.value, folder)


def sentence(error: FarmError, folder: Path | str = "") -> Message:
    """What a refusal reports, on one line, without the folder's name."""
    message = str(error)
    assert "\n" not in message
    return Message(message.replace(f"{folder}/", "") if folder else message, id=error.id)


def check(message: Message, id: str, place: str, *facts: str) -> None:
    """The message has this identifier, begins with the place (file, line, path), and states every fact."""
    assert message.id == id, message
    assert message.startswith(place), message
    assert [fact for fact in facts if fact not in message] == [], message


def with_axis(text: str) -> str:
    """BASE with one more axis, in line 4."""
    return BASE.replace("axes:\n", f"axes:\n  {text}\n")
