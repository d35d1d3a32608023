"""Lets a contract that is made from a PyTorch function be read where no torch is.

While such a contract is imported on the supervising side, `import torch` gives a stand-in: names of it may be taken
(`torch.Tensor` in an annotation, `import torch.nn.functional as F`), but nothing of it can be called.  The function's
body runs only in the process that evaluates references, which imports the same file with the real one.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

from farm.errors import ContractError

NAME = "torch"
_IMPORTING = threading.RLock()


class StandIn(ModuleType):
    """A module of torch, or anything in it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        found = StandIn(f"{self.__name__}.{name}")
        setattr(self, name, found)
        return found

    def __call__(self, *args: Any, **keywords: Any) -> NoReturn:
        raise ContractError(
            f"{self.__name__} is called while the contract is imported, where torch may be absent; call it inside the "
            "reference function",
            id="contract-torch-at-import",
        )

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __or__

    def __getitem__(self, key: Any) -> Any:
        return self


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != NAME and not name.startswith(f"{NAME}."):
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: its names come when they are asked for."""


@contextmanager
def standing_in() -> Iterator[None]:
    """While this lasts, torch is a stand-in, also where the real one was imported before; not for other threads that
    import a contract, which wait."""
    with _IMPORTING:
        finder = _Finder()
        kept = {name: m for name, m in sys.modules.items() if name == NAME or name.startswith(f"{NAME}.")}
        for name in kept:
            del sys.modules[name]
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)
            for name in [n for n in sys.modules if n == NAME or n.startswith(f"{NAME}.")]:
                del sys.modules[name]
            sys.modules.update(kept)
