"""What can be said of a step: its options, as a mapping and checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypedDict

from actors.info import Doubt, Happened, NotHappened, Unknown
from domain.errors import DefinitionError
from domain.ledger import Ledger
from domain.retry import MOST_SECONDS, Errors, RetryPolicy

OnDoubt = Literal["rerun", "hold"] | Callable[[Doubt], Happened | NotHappened | Unknown]
"""What becomes of a step in doubt: run it again, hold the task, or find out."""

Reserve = Callable[[Ledger], Any]
"""Asked before each attempt: gives what it is reserved at, any value that can be stored, or Spent."""


class StepOptions(TypedDict, total=False):
    """The options of a step, for `@step(…)`, `.options(…)` and `run_step(…)` alike.

    Keys:
        retries, backoff, max_backoff, jitter, retry_on, give_up_on: see RetryPolicy, and RetryAfterError.
        retry: a RetryPolicy to start from; the ones above change it.
        timeout: seconds that one attempt may take.
        total_timeout: seconds from the first attempt's start in which the last one has to end; of an idempotent step,
            whose starts are not in the log, from the end of the first attempt.
        heartbeat_timeout: seconds between two calls of `heartbeat` in a body, or its start and the first.
        on_doubt: "rerun" (default), "hold", or a function `(doubt) -> Happened(value) | NotHappened() | Unknown()`.
        idempotent: the body may always be entered once more; its start is not recorded.
        label: a text for people, formatted with the arguments, such as "mail to {to}".
        reserve: a function `(ledger) -> value | Spent(why)`, asked in the append that begins an attempt: the value is
            stored with the attempt's start, and given to the next asker; Spent holds the task before the body, until
            `release(grant=…)`. It may be asked more than once, and has to be quick and without effects.
        raises: the class, or classes, of errors that reach the agent as themselves; all others, those of
            subclasses too, reach it as StepError.
    """

    retries: int
    backoff: float
    max_backoff: float | None
    jitter: float
    retry_on: Errors
    give_up_on: Errors
    retry: RetryPolicy
    timeout: float | None
    total_timeout: float | None
    heartbeat_timeout: float | None
    on_doubt: OnDoubt
    idempotent: bool
    label: str | None
    reserve: Reserve | None
    raises: type[Exception] | Sequence[type[Exception]]


_POLICY = frozenset(field.name for field in fields(RetryPolicy))


@dataclass(frozen=True)
class Options:
    """The options of a step, checked."""

    retry: RetryPolicy = RetryPolicy()  # noqa: RUF009  frozen
    timeout: float | None = None
    total_timeout: float | None = None
    heartbeat_timeout: float | None = None
    on_doubt: OnDoubt = "rerun"
    idempotent: bool = False
    label: str | None = None
    reserve: Reserve | None = None
    raises: tuple[type[Exception], ...] = ()

    def but(self, name: str, changes: StepOptions) -> Options:
        """Give these options with `changes`, for the step of that name. Raises DefinitionError for what is unusable."""
        given: dict[str, Any] = dict(changes)
        unknown = given.keys() - StepOptions.__annotations__.keys()
        if unknown:
            known = ", ".join(StepOptions.__annotations__)
            raise DefinitionError(f"step {name}: there is no option {', '.join(sorted(unknown))}; there are {known}")
        raises = given.get("raises", ())
        if isinstance(raises, type | list):
            given["raises"] = (raises,) if isinstance(raises, type) else tuple(raises)
        policy = given.pop("retry", self.retry)
        if not isinstance(policy, RetryPolicy):
            raise DefinitionError(f"step {name}: retry is a RetryPolicy, not {policy!r}")
        try:
            policy = replace(policy, **{key: given.pop(key) for key in _POLICY & given.keys()})
        except (TypeError, ValueError) as error:
            raise DefinitionError(f"step {name}: {error}") from None
        changed = replace(self, retry=policy, **given)
        changed._check(name)
        return changed

    @property
    def limited(self) -> bool:
        """Whether a body can be given up, so that it may not run where its agent does."""
        return not (self.timeout is self.total_timeout is self.heartbeat_timeout is None)

    def _check(self, name: str) -> None:
        for limit in ("timeout", "total_timeout", "heartbeat_timeout"):
            seconds = getattr(self, limit)
            if seconds is not None and not (type(seconds) in (int, float) and 0 < seconds <= MOST_SECONDS):
                what = f"a number of seconds above 0 and up to {MOST_SECONDS:g}"
                raise DefinitionError(f"step {name}: {limit} is {what}, not {seconds!r:.40}")
        if not _is_plain(self.on_doubt) and self.on_doubt not in ("rerun", "hold"):
            raise DefinitionError(
                f"step {name}: on_doubt is 'rerun', 'hold' or a function (doubt) -> Happened(value) |"
                f" NotHappened() | Unknown(), not {self.on_doubt!r}"
            )
        if self.idempotent and self.on_doubt != "rerun":
            raise DefinitionError(
                f"step {name}: idempotent=True says that it may always be run again, and its start is not in the"
                " log; on_doubt cannot be had with it"
            )
        if self.reserve is not None and (self.idempotent or not _is_plain(self.reserve)):
            raise DefinitionError(
                f"step {name}: reserve is a plain function (ledger) -> value | Spent(why), and cannot be had with"
                " idempotent=True: it is stored with the record of a start"
            )
        if not (type(self.raises) is tuple and all(_is_error(kind) for kind in self.raises)):
            raise DefinitionError(
                f"step {name}: raises is a tuple of classes of errors, not {self.raises!r}; StopIteration cannot be"
                " one, Python makes a RuntimeError of it on its way to the agent"
            )


def _is_plain(given: object) -> bool:
    return callable(given) and not inspect.iscoroutinefunction(given)


def _is_error(kind: object) -> bool:
    unraisable = (StopIteration, StopAsyncIteration)
    return isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, unraisable)
