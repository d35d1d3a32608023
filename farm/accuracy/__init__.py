"""How right a result is: input families, storage dtypes, error metrics, gates, and the pure core of judging.

NumPy only, no I/O.  `evaluate` is the way in; `farm.judge.judge` is the edge that feeds it files and threads.
"""
