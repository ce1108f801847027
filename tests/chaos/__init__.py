"""The chaos suite: many tasks, several real workers on one store, and every way in which a process can vanish.

A round is drawn from its seed. `plan` says what happens when, `fleet` does it to real processes (`worker`, `client`),
`kinds` says what the tasks run, each effect of which stands in the `ledger`, and `judge` tells from the ledger and
the logs whether every promise was kept. `rounds` plays a round from its first process to its verdict.

    python -m tests.chaos --minutes 30 --seed 1 --processes 3
"""
