"""A store of runs on disk: `runs` knows its paths and formats, `before` what an interrupted run's journal knows,
`journal` what a kill leaves of the file, `lock` who may write a run's directory."""

from farm.store.journal import mend
from farm.store.runs import PLAN, SAMPLE_COLUMNS, Run, RunWriter, Store, fold

__all__ = ["PLAN", "SAMPLE_COLUMNS", "Run", "RunWriter", "Store", "fold", "mend"]
