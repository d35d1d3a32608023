"""Everything the farm refuses, as one tree.

    FarmError                  exit code 2 unless said otherwise
    ├── UsageError             the command line is wrong
    ├── MatrixError            a matrix file is wrong: where, what, what to do
    ├── StoreError             a store or a run in it cannot be read or written
    ├── BackendError           a backend is unknown, absent, or not usable here
    └── InfraError             the farm's own fault (exit code 3)

A cell's failure is never an exception that crosses a process: it is a status in the data.
"""


class FarmError(Exception):
    """Something the farm refuses, told in one sentence: where, what, and what to do."""

    exit_code = 2


class UsageError(FarmError):
    """The command line asks for something that cannot be done."""


class MatrixError(FarmError):
    """A matrix file is wrong; the message begins with file and line."""


class StoreError(FarmError):
    """A store, or a run in it, cannot be read or written."""


class BackendError(FarmError):
    """A backend is unknown, absent from the cluster, or not usable here."""


class InfraError(FarmError):
    """The farm itself failed: a cluster that did not start, a coordinator that lost its ground."""

    exit_code = 3
