"""What perdure costs beside the bare database and its peers: `python -m tests.benchmarks`. Nothing is a timed test.

Measured processes: work, contender <- agents <- ours;  raw, dbos_peer, langgraph_peer;  contenders <- child, crowded
The measuring one: figures <- targets <- table, charts;  databases <- bench <- admission <- workloads <- __main__
"""
