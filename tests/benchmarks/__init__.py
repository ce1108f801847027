"""What perdure costs beside the disk: `python -m tests.benchmarks` prints a table. Nothing here is a timed test.

agents <- steps, restart, sizes;  raw <- steps;  all <- __main__
"""
