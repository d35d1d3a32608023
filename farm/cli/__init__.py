"""The command `farm`."""

from farm.cli.main import main

__all__ = ["main"]
