"""Agents that share one budget, in a worker that kills itself with SIGKILL at the nth boundary that it reaches.

`python -m tests.spending STORE NTH`: works until all tasks of the store have ended; 0 lets it live.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from typing import Any

from actors import AgentSystem, agent, entity, gather
from stores import open_store
from stores.crash import CrashingStore, CrashPlan
from tests.budgets import Budget, TooMuch


@agent(name="spending: spender")
def spender(amounts: list[int]) -> list[Any]:
    """Ask for one amount after the other, then for two at once, and give the last back."""
    out = [spend(amount) for amount in amounts]
    out += gather(partial(spend, amounts[0]), partial(spend, amounts[1]))
    if isinstance(out[-1], int):
        out.append(entity(Budget, "b").ask(Budget.refund, amounts[1]))
    return out


def spend(amount: int) -> Any:
    try:
        return entity(Budget, "b").ask(Budget.spend, amount)
    except TooMuch as no:
        return f"only {no.left}"


@agent(name="spending: async spender")
async def async_spender(amounts: list[int]) -> list[Any]:
    """Do the same in the other colour."""
    out = [await spend_async(amount) for amount in amounts]
    out += await gather(spend_async(amounts[0]), spend_async(amounts[1]))
    if isinstance(out[-1], int):
        out.append(await entity(Budget, "b").ask_async(Budget.refund, amounts[1]))
    return out


async def spend_async(amount: int) -> Any:
    try:
        return await entity(Budget, "b").ask_async(Budget.spend, amount)
    except TooMuch as no:
        return f"only {no.left}"


if __name__ == "__main__":
    url, nth = sys.argv[1:]
    plan = CrashPlan(int(nth) or None, die=lambda: os.kill(os.getpid(), signal.SIGKILL))
    with AgentSystem(CrashingStore(open_store(url), plan, close_inner=True), strikes=None) as system:
        for task in system.tasks():
            task.result(timeout=60)
