"""Logs that releases have written, a folder for each: never edited, replayed for ever.

`python -m tests.histories` records those programs of `agents.py` that have no history in the folder of this release.
"""
