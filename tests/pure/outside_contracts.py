"""A folder of contracts outside the farm, written for a test and forgotten after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from farm.contracts import discovery
from tests.pure.planted_contracts import BASE


def write(folder: Path, op: str, body: str = "pass", above: str = "") -> Path:
    """`folder/op/contract.py`: the base of the planted contracts with a class's `body`, below the lines `above`."""
    indented = "\n".join(f"    {line}" for line in body.strip().splitlines())
    return write_text(folder, op, f"{above}\n{BASE.format(op=op)}\nclass Op(Base):\n{indented}\n\n\nCONTRACT = Op()\n")


def write_text(folder: Path, op: str, text: str) -> Path:
    (folder / op).mkdir(parents=True, exist_ok=True)
    (folder / op / "contract.py").write_text(text, encoding="utf-8")
    return folder


@contextmanager
def known(*folders: Path) -> Iterator[None]:
    """The ops of these folders are known."""
    discovery.forget()
    try:
        for folder in folders:
            discovery.add(folder)
        yield
    finally:
        discovery.forget()
