"""What would SAGC have done? Lengths on record, played to the very controller that training uses.

Read in this order: lengths (groups of any size from samples on record), workloads (where lengths come from, step by
step), steptime (what a step costs), players (who chooses the size, how rollouts are collected), whatif (the loop and
what it sums up), comparison (SAGC beside its baselines), tune (a grid of settings and one recommendation).

    tables.py      tables of lengths from other people, checked
    recorded.py    a run's records and imported veRL logs
    synthetic.py   named workloads
    source.py      what the user named -> a workload
    timefit.py     the step-time model from recorded timings
    truth.py       the true risk of each size, for the oracle
    advice.py      what the numbers support, in sentences
    costs.py       threshold-free constraints and automatic thresholds, on trial
    request.py     options of a command -> settings;   show.py, plots.py   results in the terminal and as files
"""
