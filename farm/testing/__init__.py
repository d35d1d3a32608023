"""The farm in tests: `judge` for one function in a test of any kind; `farm.testing.plugin` for `pytest --farm`.

pytest imports this package whenever the farm is installed, so it imports nothing until it is asked to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farm.testing.judging import judge as judge

__all__ = ["judge"]


def __getattr__(name: str) -> Any:
    if name == "judge":
        from farm.testing.judging import judge

        return judge
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
