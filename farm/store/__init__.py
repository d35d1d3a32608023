"""A store of runs on disk: `runs` knows its paths and formats, `recovery` reads the journal of an interrupted run,
`journal` repairs the file after a kill, `lock` decides which process may write a run's directory."""

from farm.store.journal_repair import mend
from farm.store.runs import PLAN, RUN_ID, SAMPLE_COLUMNS, Run, RunWriter, Store, fold

__all__ = ["PLAN", "RUN_ID", "SAMPLE_COLUMNS", "Run", "RunWriter", "Store", "fold", "mend"]
