"""A store of runs on disk: `runs` knows its paths and formats, `journal` reads the file of events whatever is in it,
and repairs it after a kill, `recovery` knows what an interrupted run had done, `lock` decides which process may write a
run's directory."""

from farm.store.runs import PLAN, RUN_ID, SAMPLE_COLUMNS, Run, RunWriter, Store, fold, new_id

__all__ = ["PLAN", "RUN_ID", "SAMPLE_COLUMNS", "Run", "RunWriter", "Store", "fold", "new_id"]
