"""A budget: what the model calls of a task may take, counted from its log, and asked before each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from actors.llm_messages import NotBilledError, Usage, unpack
from domain.errors import DefinitionError
from domain.ledger import Attempt, Ledger, Spent

_RESERVED = "usage"
"""The key under which the start of a call has what it was reserved at."""


class Counted(dict[tuple[str, int], Usage | None]):
    """By path and attempt, what the attempts of one task that have an end count at; None: nothing. It stays so."""


@dataclass(frozen=True)
class Budget:
    """What the model calls of one task may take in all. At the limit the task is held *before* the next call.

        llm_agent("helper", model=model, budget=Budget(cost="2.00", per_call=Usage(cost=Decimal("0.05"))))

    It is counted from the log, over retries, restarts and continued waits: each reply at its usage; one that does not
    tell it, and an attempt that failed, or of which nobody knows what came of it, at what it was reserved at, unless
    the model said by NotBilledError that it cost nothing. That reservation is the model's own `estimate`, or else
    `per_call`, and is in the record of the attempt's start. A call begins only where the reservation still fits.
    `perdure release ID --budget +1.00`, or `TaskRef.release(grant={"cost": Decimal("1.00")})`, allows more. A continued
    conversation is a task of its own, and counts anew.

    Not guaranteed: that a reply takes no more than was reserved for it; with nothing reserved, the last call may go
    beyond the limit by its whole cost.

    Args:
        cost: money, in the currency of the model's usage; a float means what it is written as.
        tokens: tokens in and out together.
        turns: model calls, those that failed included.
        per_call: what a call is reserved at.

    Raises DefinitionError for what is no amount.
    """

    cost: Decimal | float | str | None = None
    tokens: int | None = None
    turns: int | None = None
    per_call: Usage = Usage()  # noqa: RUF009  frozen

    def __post_init__(self) -> None:
        per_call: Any = self.per_call
        if not isinstance(per_call, Usage):
            raise DefinitionError(f"Budget: per_call is a Usage, not {per_call!r:.80}")
        for name, limit in self.limits().items():
            if not (limit.is_finite() and limit >= 0):
                raise DefinitionError(f"Budget: {name} is an amount from 0, not {getattr(self, name)!r}")

    def limits(self) -> dict[str, Decimal]:
        """Give the limits that there are, by name."""
        given = {name: getattr(self, name) for name in ("cost", "tokens", "turns")}
        try:
            return {name: Decimal(str(limit)) for name, limit in given.items() if limit is not None}
        except ArithmeticError:
            raise DefinitionError(f"Budget: an amount is a number, not one of {given}") from None

    def reserve(self, expected: Usage, known: Counted) -> Callable[[Ledger], Any]:
        """Give the `reserve` of a model step that is expected to take so much.

        `known` keeps what is counted already, of the one task that asks.
        """

        def ask(ledger: Ledger) -> Any:
            used, turns = Usage(), 0
            for attempt in ledger.attempts:
                usage = _usage_of(attempt, known)
                if usage is not None:
                    used, turns = used + usage, turns + 1
            amounts = {"cost": used.cost, "tokens": Decimal(used.tokens), "turns": Decimal(turns)}
            further = {"cost": expected.cost, "tokens": Decimal(expected.tokens), "turns": Decimal(1)}
            for name, limit in self.limits().items():
                allowed = limit + sum((_granted(grant, name) for grant in ledger.granted), Decimal(0))
                if why := _spent(name, amounts[name], allowed, further[name]):
                    return Spent(why, of=name)
            return {_RESERVED: expected.packed()}

        return ask


def _usage_of(attempt: Attempt, known: Counted) -> Usage | None:
    """Give what an attempt counts at; None where it is no call of a model, or was not billed."""
    key = attempt.path, attempt.number
    if key in known:
        return known[key]
    reserved, usage = attempt.reserved, None
    ours = isinstance(reserved, dict) and reserved.keys() == {_RESERVED}
    if not ours or (attempt.fault is not None and attempt.fault.is_a(NotBilledError)):
        pass
    else:
        told = unpack(attempt.value).usage if attempt.state == "finished" else Usage()
        usage = Usage.unpacked(reserved[_RESERVED]) if told == Usage() else told  # nobody has said what it took
    if attempt.state != "open":
        known[key] = usage
    return usage


def _granted(grant: Any, name: str) -> Decimal:
    """Read what a person has allowed; what is no amount allows nothing, and takes nothing: it is in the log for good.

    >>> _granted({"cost": "1.5"}, "cost"), _granted({"cost": "much"}, "cost"), _granted({"cost": "NaN"}, "cost")
    (Decimal('1.5'), Decimal('0'), Decimal('0'))
    """
    try:
        amount = Decimal(str(grant.get(name, 0))) if isinstance(grant, Mapping) else Decimal(0)
    except ArithmeticError:
        return Decimal(0)
    return amount if amount.is_finite() else Decimal(0)


def _spent(name: str, used: Decimal, allowed: Decimal, further: Decimal) -> str:
    """Say that nothing is left, or too little for one more; empty where there is enough.

    >>> _spent("cost", Decimal("2"), Decimal("2.0"), Decimal(0)), _spent("turns", Decimal(3), Decimal(3), Decimal(1))
    ('2.00 of 2.00 spent', '3 of 3 turns spent')
    >>> _spent("cost", Decimal("1.9"), Decimal("2"), Decimal("0.125"))
    '1.90 of 2.00 spent, and the next call may take 0.125'
    """
    unit = "" if name == "cost" else f" {name}"
    told = f"{_amount(name, used)} of {_amount(name, allowed)}{unit} spent"
    if used >= allowed:
        return told
    return f"{told}, and the next call may take {_amount(name, further)}" if used + further > allowed else ""


def _amount(name: str, amount: Decimal) -> str:
    if name != "cost":
        return f"{amount:f}"
    exponent = amount.normalize().as_tuple().exponent
    return f"{amount:.{max(2, -exponent if isinstance(exponent, int) else 2)}f}"
