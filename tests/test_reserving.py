"""Reservations: what an attempt may cost is in the log before it begins, and who has spent all begins nothing."""

from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from typing import Any

import pytest

from actors import (
    AgentSystem,
    Attempt,
    DefinitionError,
    Ledger,
    ResolveError,
    Spent,
    UnreadableTaskError,
    agent,
    gather,
    open_store,
    step,
)
from actors.testing import every_crash_point
from domain.events import Held, Released, StepStarted
from stores import Store
from tests.lives import die, held, kinds, live, log
from tests.test_deleting import unreadable


@pytest.fixture
def disk() -> Iterator[Store]:
    """Give the store that outlives the systems of a test."""
    with open_store("memory:") as store:
        yield store


def spent(ledger: Ledger) -> int:
    """Count what is known to be used, and reservations where nothing is known."""
    return sum(one.value if one.state == "finished" else one.reserved for one in ledger.attempts)


def up_to(limit: int, price: int = 3) -> Any:
    """Give a `reserve` that lets attempts begin while they are sure to stay within a limit."""

    def reserve(ledger: Ledger) -> int | Spent:
        used, allowed = spent(ledger), limit + sum(grant["units"] for grant in ledger.granted)
        return price if used + price <= allowed else Spent(f"{used} of {allowed} spent", of="units")

    return reserve


def spender(limit: int, times: int) -> tuple[Any, list[int]]:
    """Give an agent that uses 2 a time and reserves 3, and what was used."""
    used: list[int] = []

    @step(name="use", reserve=up_to(limit))
    def use(number: int) -> int:
        used.append(number)
        return 2

    @agent(name="spender")
    def flow() -> int:
        return sum(use(number) for number in range(times))

    return flow, used


def release(disk: Store, **how: Any) -> None:
    with AgentSystem(disk, run=False) as client:
        client.task("t").release(by="ann", **how)


def test_a_reservation_is_in_the_record_of_the_start(disk: Store) -> None:
    flow, _ = spender(10, 2)
    assert live(disk, flow) == 4
    assert [event.reserved for event in log(disk) if isinstance(event, StepStarted)] == [3, 3]


def test_who_has_spent_all_is_held_before_the_body_and_goes_on_with_what_is_granted(disk: Store) -> None:
    flow, used = spender(5, 3)
    error = held(disk, flow)
    assert error.reason == "spent"
    assert "4 of 5 spent" in str(error)
    assert "perdure release t --budget +AMOUNT" in str(error)
    assert used == [0, 1]
    assert kinds(disk)[-2:] == ["StepSucceeded", "Held"]
    release(disk, grant={"units": 5})
    assert live(disk, flow) == 6
    assert used == [0, 1, 2]
    (released,) = [event for event in log(disk) if isinstance(event, Released)]
    assert (released.value, released.by) == ({"units": 5}, "ann")


def test_who_is_released_without_a_grant_is_held_again(disk: Store) -> None:
    flow, used = spender(5, 3)
    held(disk, flow)
    release(disk)
    assert "4 of 5 spent" in str(held(disk, flow))
    assert used == [0, 1]


def test_a_grant_is_refused_where_nothing_is_spent(disk: Store) -> None:
    @step(on_doubt="hold")
    def pay() -> int:
        return 1

    @agent(name="payer in doubt")
    def flow() -> int:
        return pay()

    die(disk, flow)
    held(disk, flow)
    with pytest.raises(ResolveError, match=r"held \(in doubt\): there is nothing to grant"):
        release(disk, grant={"units": 5})


def test_a_grant_for_a_log_that_cannot_be_read_is_refused_and_nothing_goes_on(disk: Store) -> None:
    flow, _ = spender(5, 3)
    held(disk, flow)
    unreadable(disk, "t", 3)
    with pytest.raises(UnreadableTaskError, match="version 3 of its log cannot be read"):
        release(disk, grant={"units": 5})
    row = disk.recorder.select_entry("t")
    assert row is not None
    assert (row.status, row.hold) == ("held", "unreadable")


def test_an_attempt_in_doubt_counts_at_its_reservation(disk: Store) -> None:
    flow, used = spender(6, 3)
    die(disk, flow)
    assert "5 of 6 spent" in str(held(disk, flow))
    assert used == [0, 0]


def test_a_failed_attempt_is_told_of_with_its_error(disk: Store) -> None:
    seen: list[tuple[Attempt, ...]] = []

    def reserve(ledger: Ledger) -> int:
        seen.append(ledger.attempts)
        return 1

    @step(retries=1, backoff=0, reserve=reserve)
    def shaky() -> int:
        if len(seen) == 1:
            raise ConnectionError("no answer")
        return 7

    @agent(name="shaken")
    def flow() -> int:
        return shaky()

    assert live(disk, flow) == 7
    first, second = seen
    assert first == ()
    ((path, number, state, fault),) = [(one.path, one.number, one.state, one.fault) for one in second]
    assert (path, number, state) == ("1", 1, "failed")
    assert fault is not None
    assert fault.is_a(ConnectionError)


def test_branches_that_begin_at_once_see_each_other(disk: Store) -> None:
    used: list[int] = []

    @step(reserve=up_to(7))
    def use(number: int) -> int:
        used.append(number)
        return 3

    @agent(name="crowd")
    def flow() -> tuple[int, ...]:
        return gather(*[partial(use, number) for number in range(6)])

    assert "of 7 spent" in str(held(disk, flow))
    assert len(used) == 2


def test_a_reserve_function_that_fails_holds_the_task_and_begins_nothing(disk: Store) -> None:
    mended: list[bool] = []

    def reserve(_ledger: Ledger) -> int:
        if not mended:
            raise KeyError("price")
        return 1

    @step(reserve=reserve)
    def use() -> int:
        return 1

    @agent(name="broken")
    def flow() -> int:
        return use()

    assert "its reserve function failed: KeyError: 'price'" in str(held(disk, flow))
    assert not [event for event in log(disk) if isinstance(event, StepStarted)]
    mended.append(True)
    release(disk)
    assert live(disk, flow) == 1


def test_nothing_is_begun_twice_nor_forgotten_wherever_the_process_dies() -> None:
    flow, _ = spender(100, 2)
    for run in every_crash_point(flow):
        run.check()
        assert run.result == 4
        assert {event.reserved for event in run.events if isinstance(event, StepStarted)} == {3}
        assert not [event for event in run.events if isinstance(event, Held)]


@pytest.mark.parametrize("options", [{"idempotent": True}, {"reserve": 3}])
def test_a_reservation_that_cannot_be_is_refused_at_decoration(options: Any) -> None:
    with pytest.raises(DefinitionError, match="reserve is a plain function"):
        step(**{"reserve": up_to(1), **options})(lambda: Decimal(1))
