"""A subject: somebody's kernels as a `farm.yaml` describes them, in their repository or kept beside it.

Children have this package too, but of it only `bare`, for adapters: standard library only.  All else is the supervising
side: `read` (the file, into `model`), `repository`, `wheels` and `builds` (where its content comes from), `adapters`,
`content` (what is sent), `command_line` (the options), `survey` and `init` (a first file for a repository without one).
"""

from __future__ import annotations

from farm.subject.bare_packages import bare

__all__ = ["bare"]
