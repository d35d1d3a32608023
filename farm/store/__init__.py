"""A store of runs on disk: `runs` knows its paths and formats, `before` what an interrupted run's journal knows, `lock`
who may write a run's directory."""

from farm.store.runs import PLAN, SAMPLE_COLUMNS, Run, RunWriter, Store, fold, mend

__all__ = ["PLAN", "SAMPLE_COLUMNS", "Run", "RunWriter", "Store", "fold", "mend"]
