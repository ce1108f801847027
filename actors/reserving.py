"""What an attempt is reserved at, asked in the very append that begins it: two that begin at once see each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors.hints import StopAsked
from actors.info import checked
from domain.faults import Fault
from domain.ledger import Spent, ledger_of

if TYPE_CHECKING:
    from actors.options import Reserve
    from domain.task import AgentTask


class NothingLeft(StopAsked):
    """Tells that an attempt may not begin: what it would need is spent. Raised in a decision, it undoes it.

    Its arguments are why, and what is spent.
    """

    @property
    def details(self) -> dict[str, object]:
        """What the hold tells."""
        return dict(zip(("message", "of"), self.args, strict=True))


def reservation(reserve: Reserve | None, task: AgentTask, limit: int) -> Any:
    """Give the encoded reservation of the next attempt; None where the step has none. Raises NothingLeft."""
    if reserve is None:
        return None
    try:
        answer = reserve(ledger_of(task))
        encoded = None if isinstance(answer, Spent) else checked(answer, limit)
    except Exception as error:  # of the user's function: nothing was begun, and a person may mend it
        raise NothingLeft(f"its reserve function failed: {Fault.of(error)}", "") from error
    if isinstance(answer, Spent):
        raise NothingLeft(answer.why, answer.of)
    return encoded
