"""A store of runs on disk: `runs` knows the store's folders, `run_writer` and `run_reader` know a run's, `journal`
reads the file of events whatever is in it, and repairs it after a kill, `recovery` knows what an interrupted run had
done, `lock` decides which process may write a run's directory."""

from farm.store.run_reader import PLAN, Run, fold
from farm.store.run_writer import SAMPLE_COLUMNS, RunWriter
from farm.store.runs import RUN_ID, Store, new_id

__all__ = ["PLAN", "RUN_ID", "SAMPLE_COLUMNS", "Run", "RunWriter", "Store", "fold", "new_id"]
