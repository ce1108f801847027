"""An append that no thread waits for."""

from __future__ import annotations

from collections.abc import Callable

from actors.threads import NoThreadError, Threads


class Submission:
    """One append on its way: it has the lead of its task's appender until it is over.

    It is over when it was folded, on the thread that has committed it; what was not committed at the first try is gone
    on with on a thread of ours, by the way of all appends: whoever awaits it may be gone by then.
    """

    def __init__(self, told: Callable[[], object], threads: Threads) -> None:
        self._told = told
        self._threads = threads
        self.fold: Callable[[], object] = _nothing
        self.go_on: Callable[[], object] = _nothing
        self.leave: Callable[[], object] = _nothing
        self._error: BaseException | None = None
        self._has_no_thread = False

    def hear(self, verdict: BaseException | None) -> None:
        """Take the verdict of the store."""
        if verdict is None:
            self._carry_out(self.fold)
            return
        try:
            self._threads.start(lambda: self._carry_out(self.go_on))
        except NoThreadError:
            self._has_no_thread = True
            self._told()

    def _carry_out(self, last: Callable[[], object]) -> None:
        error = None
        try:
            last()
        except BaseException as raised:
            error = raised
        finally:
            self.leave()
            self.fold = self.go_on = self.leave = _nothing  # which know this one: no cycle is left
        self.end(error)

    def end(self, error: BaseException | None) -> None:
        """Say how it has ended."""
        self._error = error
        self._told()

    def answer(self) -> None:
        """Raise what it has ended with, if that is an error; called once, when it is over.

        Where the machine has no thread left it is gone on with here: better a short wait than an append left behind.
        """
        if self._has_no_thread:
            self._carry_out(self.go_on)
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback holds this frame


def _nothing() -> None:
    return
