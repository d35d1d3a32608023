"""Starts, talks to and ends processes; for the supervising side also the one reader of /proc.

`procfs` uses psutil, which a child does not have; the other modules need the standard library alone.
"""
