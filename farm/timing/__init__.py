"""Timing: policies by name and version, the stopping rule, what a set of samples is worth."""
