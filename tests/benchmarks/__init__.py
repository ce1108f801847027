"""What perdure costs beside the disk: `python -m tests.benchmarks` prints a table. Nothing here is a timed test.

agents <- steps, restart, sizes;  raw <- steps;  rows, crowded <- admission;  all <- __main__
"""
