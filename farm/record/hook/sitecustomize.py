"""Loaded by every Python that a watched command starts; then the sitecustomize that it hides is loaded."""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120


def _next():
    """Run the sitecustomize that this one hides, if there is one."""
    path = [p for p in sys.path if os.path.abspath(p or ".") != _HERE]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


try:
    import farm_recorder

    farm_recorder.start()
except Exception as error:  # the watched program is more important than its record
    print("farm record: this process is not watched (%s)" % error, file=sys.stderr)  # noqa: T201, UP031
_next()
