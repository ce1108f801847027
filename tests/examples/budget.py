"""A budget that many agents share: never overspent, and nothing booked twice, whatever dies.

    python tests/examples/budget.py team-7

Run it in one terminal or in three at once, kill it, run it again: all that differs is who does the work. The tasks and
the budget are in PERDURE_STORE (sqlite:///perdure.db).
"""

import os
import sys
from decimal import Decimal

from actors import AgentSystem, Entity, Rejected, agent, entity, event

PRICES = [Decimal("0.90"), Decimal("2.50"), Decimal("1.75")]


class Budget(Entity):
    """What a team may spend. Its state comes from its events alone."""

    TOPIC = "budget"

    def __init__(self) -> None:
        self.limit = Decimal("20.00")
        self.spent: dict[str, Decimal] = {}

    @property
    def left(self) -> Decimal:
        return self.limit - sum(self.spent.values(), Decimal(0))

    def spend(self, who: str, amount: Decimal) -> Decimal:
        """Book an amount, and tell what is left; a command decides, by the state alone."""
        if amount > self.left:
            raise Rejected(f"{amount} is more than the {self.left} that are left")
        self.book(who, amount)
        return self.left

    def statement(self) -> str:
        """Tell who has spent what; a question leaves nothing behind."""
        shares = [f"{who} {amount}" for who, amount in sorted(self.spent.items())]
        return f"{self.limit - self.left} of {self.limit} spent: {', '.join(shares)}"

    @event("Spent")
    def book(self, who: str, amount: Decimal) -> None:
        """Change the state; an event has happened, and can refuse nothing any more."""
        self.spent[who] = self.spent.get(who, Decimal(0)) + amount


@agent
def shopper(team: str, name: str) -> str:
    """Buy what there is, as long as there is money."""
    budget, bought = entity(Budget, team), 0
    try:
        for price in PRICES:
            budget.ask(Budget.spend, name, price)  # a step: done once, however often this code runs
            bought += 1
    except Rejected as no:
        return f"{name} bought {bought}, then {no}"
    return f"{name} bought all {bought}"


if __name__ == "__main__":
    (team,) = sys.argv[1:]
    with AgentSystem(os.environ.get("PERDURE_STORE", "sqlite:///perdure.db")) as system:
        names = ["ann", "ben", "cat", "dan", "eve", "fay"]
        tasks = [system.spawn(shopper, team, name, id=f"{team}-{name}") for name in names]
        print("\n".join(task.result(timeout=60) for task in tasks))
        print(system.entity(Budget, team).ask(Budget.statement))
