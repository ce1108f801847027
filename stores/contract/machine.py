"""Many stores and a few dictionaries do the same things at once, and have to hold the same after each of them."""

import itertools
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from eventsourcing.persistence import IntegrityError
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from stores.contract.kit import events, raising, row, said, submit
from stores.contract.model import Model
from stores.emissions import EMIT, RESET, Emission
from stores.errors import AppendConflictError
from stores.store import Store
from stores.task_index import START, Birth, Expected, IndexRow, Place


@dataclass(frozen=True)
class Maker:
    """How the stores of one kind are opened: `fresh` in an empty folder, `again` where they outlive a close."""

    fresh: Callable[[Path], Store]
    again: Callable[[Store], Store] | None = None


def stores_agree(makers: Mapping[str, Maker], settings: hypothesis_settings | None = None) -> None:
    """Let Hypothesis look for calls after which one of these stores does not hold, or say, what the contract does.

    All do the same at once: appends with right and wrong expectations, with births, with an `inside` that raises, some
    of them submitted; deletions, changes of the index, heartbeats, emissions, beats, reads; a second opening beside the
    first, a new one after a close. `settings` are Hypothesis's, in place of 50 examples of 30 calls.
    Raises AssertionError with the shortest calls that it has found, and the name of the store.
    """

    class Machine(StoreMachine):
        pass

    Machine.makers = makers
    default = hypothesis_settings(deadline=None, max_examples=50, stateful_step_count=30)
    run_state_machine_as_test(Machine, settings=settings or default)


class _UndoneError(Exception):
    """Raised by an `inside`."""


NAMES = ["a", "b", "c"]
LIVES = ["x", "y"]
AIMS = ["right"] * 6 + ["another life", "another head", "no task"]
names = st.sampled_from(NAMES)
lives = st.sampled_from(LIVES)
small = st.integers(1, 4)
paths = st.sampled_from(["1", "2"])
moments = st.sampled_from([0.0, 1.0, 2.0])
owners = st.sampled_from(["v", "w"])
limits = st.sampled_from([0, 1, 2, 9])
places = st.just(START) | st.tuples(moments, names)
LOOKS = [
    row(status=status, agent=agent, due=due, owner=owner, hold=hold, note=note)
    for status, agent, due, owner, (hold, note) in itertools.product(
        ["queued", "held"],
        ["f", "g"],
        [None, 0.0, 1.0, 2.0],
        [None, "v", "w"],
        [(None, ""), ("doubt", "é\0"), ("differs", "")],
    )
]
TIMES = list(itertools.product([0.0, 1.0, 2.0], repeat=2))
# Few draws for many columns: what an example costs is mostly what Hypothesis takes to choose.
entries = st.builds(
    lambda look, name, birth, head, activation, times: look._replace(
        id=name, birth=birth, head=head, activation=activation, created=times[0], updated=times[1]
    ),
    st.sampled_from(LOOKS),
    names,
    lives,
    small,
    small,
    st.sampled_from(TIMES),
)
children = st.lists(entries.map(lambda entry: entry._replace(head=1)), max_size=2)
mostly = st.sampled_from([True, True, True, False])
faults = st.sampled_from([""] * 6 + ["gap", "head", "task"])
insides = st.sampled_from([None, None, raising(_UndoneError)])
sayings = st.lists(
    st.builds(said, paths, activation=st.sampled_from([4, 4, 1, 2, 3]), kind=st.sampled_from([EMIT, EMIT, RESET])),
    max_size=4,
)
QUERIES: list[dict[str, Any]] = [
    {},
    {"status": ["held"]},
    {"status": []},
    {"hold": {"doubt", "differs"}},
    {"hold": ["doubt"], "after": 0.0},
    {"agent": "f", "status": ["held", "queued"]},
    {"after": 1.0},
    {"prefix": "a"},
    {"prefix": "b\0"},
    {"prefix": "", "agent": "g", "hold": ["differs"], "status": ["queued"]},
]


class StoreMachine(RuleBasedStateMachine):
    """The stores of `makers` and the model: each rule is done by all, and all are compared after it."""

    makers: ClassVar[Mapping[str, Maker]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.folder = Path(tempfile.mkdtemp(prefix="stores-agree-"))
        self.opened: dict[str, list[Store]] = {}
        for name, maker in self.makers.items():
            (self.folder / name).mkdir()
            self.opened[name] = [maker.fresh(self.folder / name)]

    def teardown(self) -> None:
        """Close all that is open."""
        for store in itertools.chain(*self.opened.values()):
            store.close()
        shutil.rmtree(self.folder)

    def do(self, method: str, *args: Any, submitted: bool = False, **options: Any) -> None:
        """Let all do one thing, and compare what each says; an append may be submitted, which comes to the same."""
        wanted = _outcome(getattr(self.model, method), args, options)
        for name, (store, *_) in self.opened.items():
            call = partial(submit, store) if submitted else getattr(store.recorder, method)
            found = _outcome(call, args, options)
            assert found == wanted, f"{name}: {method} gave {found}; by the contract it is {wanted}"

    # ------------------------------------------------------------------ appends

    def aim(self, entry: IndexRow, aim: str) -> Expected:
        """Give what to expect of a task: what is there, or what comes near to it."""
        row = self.model.rows.get(entry.id)
        if aim == "no task" or (aim == "right" and row is None):
            return None
        life, head = (entry.birth, entry.head) if row is None else (row.birth, row.head)
        if aim == "another life":
            life = LIVES[life == LIVES[0]]
        return life, head + (aim == "another head")

    @rule(entry=entries, aim=st.sampled_from(AIMS), count=st.integers(1, 3), inside=insides, submitted=st.booleans())
    def grow(self, entry: IndexRow, aim: str, count: int, inside: Any, submitted: bool) -> None:
        """Append, with little that may be wrong."""
        expected = self.aim(entry, aim)
        head = expected[1] if expected else 0
        added = events(entry.id, *range(head + 1, head + count + 1))
        entry = entry._replace(head=head + count)
        self.do("insert_events", added, entry=entry, expected=expected, inside=inside, submitted=submitted)

    @rule(
        entry=entries, aim=st.sampled_from(AIMS), count=st.integers(0, 2), born=children, fault=faults, inside=insides
    )
    def append(self, entry: IndexRow, aim: str, count: int, born: list[IndexRow], fault: str, inside: Any) -> None:
        """Append with all that an append may have, and that may be wrong with one."""
        expected = self.aim(entry, aim)
        first = (expected[1] if expected else 0) + 1
        entry = entry._replace(head=first + count - 1 + (fault == "head"))
        added = events("another" if fault == "task" else entry.id, *range(first, first + count))
        births = [Birth(events(child.id, 1)[0], child) for child in born]
        appended = added[1:] if fault == "gap" else added
        self.do("insert_events", appended, entry=entry, expected=expected, births=births, inside=inside)

    # ------------------------------------------------------------------ the index alone

    @rule(entry=entries, aim=st.sampled_from(AIMS), steady=mostly)
    def update_index(self, entry: IndexRow, aim: str, steady: bool) -> None:
        """Change a row, mostly leaving its head alone: else it does not fit the log any more."""
        expected = self.aim(entry, aim) or (entry.birth, entry.head)
        self.do("update_index", entry._replace(head=expected[1]) if steady else entry, expected=expected)

    @rule(changes=st.dictionaries(names, st.none() | entries, max_size=2))
    def rebuild_index(self, changes: dict[str, IndexRow | None]) -> None:
        """Rebuild, so that a few rows are others, or are gone."""

        def row_of(task_id: str, old: IndexRow | None) -> IndexRow | None:
            new = changes.get(task_id, old)
            return None if new is None else new._replace(id=task_id)

        self.do("rebuild_index", row_of)

    @rule(entry=entries, aim=st.sampled_from(AIMS))
    def delete_task(self, entry: IndexRow, aim: str) -> None:
        """Delete a task, where it is as expected."""
        self.do("delete_task", entry.id, expected=self.aim(entry, aim) or (entry.birth, entry.head))

    @rule()
    def delete_orphans(self) -> None:
        """Sweep."""
        self.do("delete_orphans")

    # ------------------------------------------------------------------ beside the log

    @rule(task=names, path=paths, heard=st.lists(st.tuples(mostly, small), min_size=1, max_size=3))
    def beat(self, task: str, path: str, heard: list[tuple[bool, int]]) -> None:
        """Give heartbeats of one step, some of them late, some of another life."""
        for place, (usual, attempt) in enumerate(heard):
            self.do("save_heartbeat", task, LIVES[usual], path, attempt, f"page {place}")

    @rule(task=names, path=st.none() | paths)
    def forget_heartbeats(self, task: str, path: str | None) -> None:
        """Delete heartbeats."""
        self.do("delete_heartbeats", task, path)

    @rule(task=names, right=mostly, life=lives, rows=sayings, more=sayings)
    def say(self, task: str, right: bool, life: str, rows: list[Emission], more: list[Emission]) -> None:
        """Emit, mostly for the life that the task has; and perhaps once more after an append."""
        entry = self.model.rows.get(task)
        life = entry.birth if right and entry is not None else life
        self.do("save_emissions", task, life, rows)
        if entry is not None and more:
            longer = entry._replace(head=entry.head + 1)
            expected = entry.birth, entry.head
            self.do("insert_events", events(task, longer.head), entry=longer, expected=expected)
            self.do("save_emissions", task, life, more)

    @rule(task=names)
    def forget_emissions(self, task: str) -> None:
        """Delete emissions."""
        self.do("delete_emissions", task)

    @rule(worker=owners, count=small, lease=st.sampled_from([0.5, 10.0]))
    def beat_of_a_worker(self, worker: str, count: int, lease: float) -> None:
        """Beat."""
        self.do("save_beat", worker, count, lease)

    @rule(worker=owners)
    def forget_beat(self, worker: str) -> None:
        """Delete a beat."""
        self.do("delete_beat", worker)

    # ------------------------------------------------------------------ reads

    @rule(limit=limits, after=places, moment=moments)
    def look(self, limit: int, after: Place, moment: float) -> None:
        """Select in many ways."""
        for query in QUERIES:
            self.do("select_entries", **query)
            self.do("select_entries", **query, limit=1)
            self.do("select_entries", **query, limit=limit)
        for hold in ("doubt", "differs"):
            self.do("select_held", hold, after=after, limit=limit)
        for known, busy in itertools.product([[], ["f"], ["g", "f", "unknown"]], [[], ["v"]]):
            self.do("select_ready", moment, agents=known, busy_owners=busy, after=after, limit=limit)
            self.do("next_due", moment - len(busy), agents=known)
        self.do("select_rows", ["c", "nobody", "a"])
        self.do("select_page", after=after[1], limit=limit)
        self.do("select_ids", after=after[1], limit=limit)

    @rule(gt=st.none() | small, lte=st.none() | small, desc=st.booleans(), limit=st.none() | limits)
    def look_at_events(self, **bounds: Any) -> None:
        """Select a part of each log."""
        for task in NAMES:
            self.do("select_events", task, **bounds)

    @rule(after=st.tuples(small, small), upto=small, limit=limits)
    def look_at_emissions(self, **bounds: Any) -> None:
        """Select a part of what each has said."""
        for task, life in itertools.product(NAMES, LIVES):
            self.do("select_emissions", task, life, **bounds)

    # ------------------------------------------------------------------ openings

    @precondition(lambda self: any(maker.again for maker in self.makers.values()))
    @rule()
    def change_hands(self) -> None:
        """Go on with a second opening beside the first: what one has written, the other has to see."""
        for name, opened in self.opened.items():
            again = self.makers[name].again
            if again is not None and len(opened) == 1:
                opened.append(again(opened[0]))
            opened.reverse()

    @precondition(lambda self: any(maker.again for maker in self.makers.values()))
    @rule()
    def reopen(self) -> None:
        """Close, and go on with a new opening."""
        for name, opened in self.opened.items():
            again = self.makers[name].again
            if again is not None:
                for store in opened:
                    store.close()
                opened[:] = [again(opened[0])]

    @invariant()
    def all_hold_the_same(self) -> None:
        """Compare all that is in the stores."""
        self.do("select_entries")
        self.do("select_ids")
        self.do("select_beats")
        self.do("select_orphans")
        for task in NAMES:
            self.do("select_entry", task)
            self.do("select_events", task)
        for task, life in itertools.product(NAMES, LIVES):
            self.do("select_emissions", task, life, upto=99, limit=99)
            self.do("select_heartbeat", task, life, "1")
            self.do("select_heartbeat", task, life, "2")


def _outcome(call: Callable[..., object], args: Any, options: Any) -> object:
    """Do it, and say how it ended: what it gave, or which error with what facts."""
    try:
        return call(*args, **options)
    except AppendConflictError as error:
        return "a conflict", error.task_id, error.expected, error.found
    except (IntegrityError, ValueError, _UndoneError) as error:
        return type(error).__name__
