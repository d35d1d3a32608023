"""`farm doctor`: what this host has and lacks, each lack with its cure."""

from __future__ import annotations

import argparse


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    commands.add_parser("doctor", help="what this host has and lacks, each lack with its cure")


def run(args: argparse.Namespace) -> int:
    """Print the findings."""
    raise NotImplementedError
