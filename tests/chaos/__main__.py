"""Play rounds by hand, one seed after the other, until the time is up: `python -m tests.chaos --minutes 30`."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from time import monotonic

from tests.chaos.rounds import play


def main() -> int:
    """Play, tell of each round, keep the folder of a bad one; 1 where there was a complaint."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whatever ends this ends its processes
    options, bytecode = parsed(), Path(tempfile.mkdtemp(prefix="chaos-bytecode-"))
    until, seed = monotonic() + options.minutes * 60, options.seed
    totals: Counter[str] = Counter()
    while monotonic() < until:
        folder = Path(tempfile.mkdtemp(prefix=f"chaos-{seed}-"))
        given = {"bytecode": bytecode, "processes": options.processes, "store": options.store}
        verdict = play(seed, options.seconds, folder, **given)
        print(verdict, flush=True)
        totals += verdict.totals + Counter(rounds=1, complaints=len(verdict.complaints))
        if not verdict.complaints:
            shutil.rmtree(folder)
        seed += 1
    shutil.rmtree(bytecode)
    print("in all:", ", ".join(f"{count} {what}" for what, count in sorted(totals.items())))
    return int(totals["complaints"] > 0)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="no round begins after these (%(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="chaos in one round (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="that of the first round; the next ones follow")
    parser.add_argument("--processes", type=int, default=3, help="workers (%(default)s)")
    parser.add_argument("--store", help="a URL, of a store that has not seen these seeds; by default a file a round")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
