"""How a module of this farm is run in a process of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping


def module_words(name: str, python: str = sys.executable) -> tuple[str, str, str]:
    """The words that run a module of this farm, from its PYTHONPATH first, in any folder and whatever else its Python
    has: with `-m`, a folder `farm` or `kernels` of the working directory would come first (before 3.11 there is no
    PYTHONSAFEPATH); so would a farm that a `.pth` file of that Python names."""
    text = (
        "import os,sys;p=[x for x in os.environ.get('PYTHONPATH','').split(os.pathsep) if x];"
        "sys.path[:]=p+[x for x in sys.path if x and x not in p];"
        f"import runpy;runpy.run_module('{name}',None,'__main__',True)"
    )
    return python, "-c", text


def own_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Of a process of the supervisor's own: all of `environ` (this one's), and where it imports from."""
    return {**(os.environ if environ is None else environ), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
