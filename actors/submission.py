"""An append that no thread waits for."""

from __future__ import annotations

from collections.abc import Callable

from actors.parts import INTERRUPTS
from actors.threads import NoThreadError, Threads


class Submission:
    """One append on its way: it has the lead of its task's appender until the store has spoken.

    Committed, it is folded on the thread that has committed it. What was not committed at the first try is gone on
    with by whoever leads the appender next, before anything else: who stands in line behind it, or else a thread of
    ours; whoever awaits it may be gone by then. It never waits for a thread while others wait for it: they may have
    all that there are.
    """

    def __init__(self, told: Callable[[], object], threads: Threads) -> None:
        self._told = told
        self._threads = threads
        self.fold: Callable[[], object] = _nothing
        self.send_again: Callable[[], object] = _nothing
        self.leave: Callable[[], object] = _nothing
        self.hand_on: Callable[[], bool] = _nobody
        self.lead_again: Callable[[], object] = _nothing
        self._error: BaseException | None = None
        self._has_no_thread = False

    def hear(self, verdict: BaseException | None) -> None:
        """Take the verdict of the store."""
        if verdict is None:
            self._carry_out(self.fold)
        elif not self.hand_on():
            try:
                self._threads.start(self.lead_again)
            except NoThreadError:
                self._has_no_thread = True
                self._told()

    def go_on(self) -> None:
        """Go on with what was not committed; called by who leads."""
        self._carry_out(self.send_again)

    def _carry_out(self, last: Callable[[], object]) -> None:
        error = None
        try:
            last()
        except BaseException as raised:
            error = raised
        finally:
            self.leave()
            self.fold = self.send_again = self.leave = self.lead_again = _nothing
            self.hand_on = _nobody  # all of them know this one: no cycle is left
        self.end(error)
        if isinstance(error, INTERRUPTS):  # of the thread that it has hit, too
            raise error

    def end(self, error: BaseException | None) -> None:
        """Say how it has ended."""
        self._error = error
        self._told()

    def answer(self) -> None:
        """Raise what it has ended with, if that is an error; called once, when it is over.

        Where the machine has no thread left it is gone on with here: better a short wait than an append left behind.
        """
        if self._has_no_thread:
            self.lead_again()
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback holds this frame


def _nothing() -> None:
    return


def _nobody() -> bool:
    return False
