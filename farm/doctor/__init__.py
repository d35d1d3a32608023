"""What a host has and lacks: `gather` looks, within deadlines; `examine` judges what was seen, and is pure."""

from farm.doctor.examine import Finding, Level, examine, exit_code
from farm.doctor.facts import BackendFacts, Facts, Space, Trial
from farm.doctor.gather import gather

__all__ = ["BackendFacts", "Facts", "Finding", "Level", "Space", "Trial", "examine", "exit_code", "gather"]
