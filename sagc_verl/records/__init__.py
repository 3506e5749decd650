"""What a run leaves on disk: `run.json` and three tables (rollouts, groups, steps) in Parquet.

tables.py     the columns: names, dtypes, units, meaning (docs/metrics.md is generated from it)
layout.py     file names, and which file or row counts when runs crash and resume
runinfo.py    run.json
parquet.py    one step's columns to a Parquet file that is whole or not there
writer.py     RecordWriter: one background thread beside training
compact.py    merging many small files into few
reader.py     load_run: pandas DataFrames and Arrow batches
timeline.py   tail, idle share and cost of the longest rollouts of a step
causes.py     why a rollout was a straggler
logparse.py   veRL's logs, line by line
importlog.py  the same tables from these logs, for runs made without SAGC
errors.py     RecordsError, ImportLogError: one line each
"""
