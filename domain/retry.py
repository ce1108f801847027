"""Retries, restarts and strikes: numbers in, decisions out."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_DELAY = 0.1
"""Seconds before the first restart."""
LONGEST_DELAY = 60.0
"""Seconds that no restart waits longer than, jitter aside."""
JITTER = 0.1
"""The share by which a delay is moved at most, either way."""
STRIKE_LIMIT = 3
"""Strikes at which a task is held, unless its system says otherwise."""

LONGEST_BACKOFF = 60.0
"""Seconds that no wait for a retry is longer than, unless its policy says otherwise."""
MOST_SECONDS = 1e9
"""Seconds that no wait and no limit may be longer than: some thirty years."""

Errors = type[BaseException] | tuple[type[BaseException], ...]
"""One class of errors, or several."""


@dataclass(frozen=True)
class RetryPolicy:
    """When a step that raised is tried again.

    Retry n waits backoff · 2ⁿ⁻¹ seconds, at most `max_backoff`, moved by at most the share `jitter` either way. Only an
    `Exception` is ever retried: SystemExit, KeyboardInterrupt and CancelledError are not.

    Args:
        retries: tries after the first; attempts that a death cut short use up none.
        backoff: seconds before the first retry; 0 tries again at once.
        max_backoff: seconds that no wait is longer than, jitter aside; by default 60, or `backoff` where that is more.
        jitter: from 0 to 1.
        retry_on: the errors that are worth another try.
        give_up_on: those of them that are not.

    Raises ValueError for numbers that make no sense, TypeError for what is no class of errors.
    """

    retries: int = 0
    backoff: float = 1.0
    max_backoff: float | None = None
    jitter: float = JITTER
    retry_on: Errors = Exception
    give_up_on: Errors = ()

    def __post_init__(self) -> None:
        if type(self.retries) is not int or self.retries < 0:
            raise ValueError(f"retries is a whole number from 0, not {self.retries!r}")
        for name, most in (("backoff", MOST_SECONDS), ("max_backoff", MOST_SECONDS), ("jitter", 1.0)):
            number = getattr(self, name)
            if name == "max_backoff" and number is None:
                continue
            if type(number) not in (int, float) or not 0 <= number <= most:
                unit = "" if most == 1.0 else " of seconds"
                raise ValueError(f"{name} is a number{unit} from 0 to {most:g}, not {_shown(number)}")
        for name in ("retry_on", "give_up_on"):
            kinds = getattr(self, name)
            for kind in kinds if isinstance(kinds, tuple) else (kinds,):
                if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                    raise TypeError(f"{name} is a class of errors, or a tuple of them, not {kinds!r}")

    def wants(self, error: BaseException) -> bool:
        """Tell whether an error is worth another try.

        >>> policy = RetryPolicy(retries=1, retry_on=OSError, give_up_on=FileNotFoundError)
        >>> policy.wants(ConnectionError()), policy.wants(FileNotFoundError()), policy.wants(ValueError())
        (True, False, False)
        >>> RetryPolicy(retry_on=BaseException).wants(SystemExit())
        False
        """
        kind = type(error)  # not its `__class__`, which is its own to tell
        return issubclass(kind, Exception) and issubclass(kind, self.retry_on) and not issubclass(kind, self.give_up_on)

    def delay(self, failures: int, jitter: float = 0.0) -> float:
        """Give the seconds to wait after so many failures, with `jitter` drawn by the caller from [-1, 1].

        >>> [RetryPolicy(backoff=1, max_backoff=3).delay(n) for n in (1, 2, 3, 10_000)]
        [1.0, 2.0, 3.0, 3.0]
        >>> [RetryPolicy(backoff=600).delay(n) for n in (1, 2)], RetryPolicy().delay(10_000)
        ([600.0, 600.0], 60.0)
        """
        longest = max(LONGEST_BACKOFF, self.backoff) if self.max_backoff is None else self.max_backoff
        wait = min(longest, self.backoff * 2.0 ** min(failures - 1, 60))
        return float(wait * (1 + self.jitter * jitter))

    def next_attempt(
        self, failures: int, now: float, *, jitter: float = 0.0, until: float | None = None, at_least: float = 0.0
    ) -> float | None:
        """Give when the next attempt is due, in the unit of `now`; None where the step has failed for good.

        `failures` counts the attempts that ended in an error so far; after `until` there is none. `at_least` are the
        seconds that the error itself has asked to be left alone.

        >>> RetryPolicy(retries=1, backoff=10).next_attempt(1, now=100.0)
        110.0
        >>> RetryPolicy(retries=1, backoff=10).next_attempt(2, now=100.0)
        >>> RetryPolicy(retries=1, backoff=10).next_attempt(1, now=100.0, until=105.0)
        >>> RetryPolicy(retries=1, backoff=10).next_attempt(1, now=100.0, at_least=90.0)
        190.0
        """
        if failures > self.retries:
            return None
        due = now + max(self.delay(failures, jitter), at_least)
        return None if until is not None and due >= until else due


def _shown(number: object) -> str:
    try:
        return f"{number!r:.40}"
    except ValueError:  # an int of thousands of digits
        return "that"


RESTARTS = RetryPolicy(backoff=FIRST_DELAY, max_backoff=LONGEST_DELAY, jitter=JITTER)
"""How long a supervisor waits between restarts; how many there are, strikes decide."""


def restart_delay(strikes: int, jitter: float = 0.0) -> float:
    """Give the seconds to wait before restart number `strikes`, with `jitter` drawn by the caller from [-1, 1].

    >>> [restart_delay(n) for n in (1, 2, 3)]
    [0.1, 0.2, 0.4]
    >>> restart_delay(10_000)
    60.0
    >>> round(restart_delay(1, jitter=-1), 6)
    0.09
    """
    return RESTARTS.delay(strikes, jitter)


def is_out(strikes: int, limit: int | None) -> bool:
    """Tell whether a task has reached the limit; None means no limit.

    >>> is_out(3, limit=3), is_out(2, limit=3), is_out(99, limit=None)
    (True, False, False)
    """
    return limit is not None and strikes >= limit


def is_suspect(strikes: int, limit: int | None) -> bool:
    """Tell whether one more strike would hold the task: it runs alone, so that the next death has one suspect.

    With a limit of 1 nobody would be innocent until proven so, and everything would run alone; there a first death is
    taken as proof.

    >>> is_suspect(2, limit=3), is_suspect(1, limit=3), is_suspect(0, limit=1)
    (True, False, False)
    """
    return limit is not None and 0 < strikes == limit - 1
