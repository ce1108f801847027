"""The contract of the index and of what is read from it and from the log."""

import pytest

from stores.contract.kit import Suite, contents, create, events, grow, row, said, versions
from stores.errors import AppendConflictError
from stores.store import Store
from stores.task_index import START, IndexRow, Place, place


class Index(Suite):
    """What the index guarantees where it is written by itself."""

    def test_the_index_row_alone_changes_by_the_same_compare_and_swap(self, store: Store) -> None:
        entry = create(store)
        held = entry._replace(hold="unreadable", note="version 1")
        store.recorder.update_index(held, expected=(entry.birth, 1))
        assert store.recorder.select_entry("a") == held
        for mine, expected in ((entry, (entry.birth, 2)), (entry, ("another", 1)), (row("ghost"), ("birth", 1))):
            with pytest.raises(AppendConflictError) as caught:
                store.recorder.update_index(mine, expected=expected)
            assert (caught.value.task_id, caught.value.expected) == (mine.id, expected)
            assert caught.value.found == (held if mine.id == "a" else None)
        assert store.recorder.select_entries() == [held]
        store.recorder.update_index(another := held._replace(birth="another"), expected=(entry.birth, 1))
        assert store.recorder.select_entries() == [another]
        assert store.recorder.select_events("a") == events("a", 1)

    def test_rebuilding_the_index_asks_for_each_id_in_the_log_and_leaves_the_log(self, store: Store) -> None:
        a, b = create(store, "a"), create(store, "b")

        def changed(task_id: str, old: IndexRow | None) -> IndexRow | None:
            assert old is not None
            return None if task_id == "a" else row("b", 5, note=old.note)

        assert store.recorder.rebuild_index(changed) == [row("b", 5)]
        assert store.recorder.select_entries() == [row("b", 5)]
        asked: list[object] = []

        def as_it_was(task_id: str, old: IndexRow | None) -> IndexRow:
            asked.append((task_id, old))
            return {"a": a, "b": b}[task_id]

        store.recorder.rebuild_index(as_it_was)
        assert asked == [("a", None), ("b", row("b", 5))]
        assert sorted(store.recorder.select_entries(), key=lambda entry: entry.id) == [a, b]
        assert store.recorder.select_ids() == ["a", "b"]

    def test_a_rebuild_that_fails_leaves_the_index(self, store: Store) -> None:
        create(store, "a")
        before = contents(store)
        with pytest.raises(KeyError):
            store.recorder.rebuild_index(lambda task_id, old: dict[str, IndexRow]()[task_id])
        assert contents(store) == before


class Events(Suite):
    """What is read from the log."""

    def test_events_are_selected_by_version(self, store: Store) -> None:
        store.recorder.insert_events(events("a", *range(1, 13)), entry=row(head=12), expected=None)
        assert versions(store, "a") == list(range(1, 13))
        assert versions(store, "a", gt=3, lte=5) == [4, 5]
        assert versions(store, "a", gt=9, desc=True) == [12, 11, 10]
        assert versions(store, "a", desc=True, limit=2) == [12, 11]
        assert versions(store, "a", limit=0) == []
        assert store.recorder.select_events("b") == []
        assert store.recorder.select_ids() == ["a"]  # asking makes nothing

    def test_events_come_by_version_in_whatever_order_they_were_stored(self, store: Store) -> None:
        recorder, birth = store.recorder, row().birth
        recorder.insert_events([], entry=row(head=0), expected=None)
        recorder.update_index(row(head=1), expected=(birth, 0))  # an index that does not fit the log
        grow(store, row(head=1))
        recorder.update_index(row(head=0), expected=(birth, 2))
        grow(store, row(head=0))
        assert recorder.select_events("a") == events("a", 1, 2)
        assert recorder.select_events("a", limit=1, desc=True) == events("a", 2)


class Entries(Suite):
    """What is read from the index."""

    def test_entries_are_selected_newest_last(self, store: Store) -> None:
        a = create(store, "a", created=3.0, status="held", hold="doubt")
        b = create(store, "b", created=1.0, status="held", hold="strikes", agent="other")
        c = create(store, "c", created=2.0, status="queued")
        select = store.recorder.select_entries
        assert select() == [b, c, a]
        assert select(limit=2) == [c, a]
        assert select(limit=0) == []
        assert select(status={"held"}) == [b, a]
        assert select(status=["held", "queued"], limit=1) == [a]
        assert select(status=[]) == []
        assert select(agent="other") == [b]
        assert select(hold={"doubt", "spent"}) == [a]
        assert select(status={"held"}, agent="agent", hold={"strikes"}) == []
        assert store.recorder.select_entry("d") is None

    @pytest.mark.parametrize("count", [0, 1, 200, 401])
    def test_rows_are_selected_by_id_and_what_is_not_there_is_left_out(self, store: Store, count: int) -> None:
        made = {entry.id: entry for entry in (create(store, f"task-{number}") for number in range(count))}
        create(store, "another")
        assert store.recorder.select_rows([*made, "missing", "task-%"]) == made
        assert store.recorder.select_rows([]) == {}

    def test_a_prefix_means_exactly_itself(self, store: Store) -> None:
        ids = ["a%", "a%b", "a_", "aXb", "A%", "a'\"", "é", "é1", "e\u0301"]
        ids += ["\ud7ff", "\ue000", "\U0010ffff", "\U0010ffffz"]
        for number, task_id in enumerate(ids):
            create(store, task_id, created=float(number))

        def begin_with(prefix: str) -> list[str]:
            return [entry.id for entry in store.recorder.select_entries(prefix=prefix)]

        assert begin_with("") == ids
        assert begin_with("a") == ["a%", "a%b", "a_", "aXb", "a'\""]
        assert begin_with("a%") == ["a%", "a%b"]
        assert begin_with("a_") == ["a_"]
        assert begin_with("a'") == ["a'\""]
        assert begin_with("a%b ") == begin_with("b") == begin_with("a\0") == []
        assert begin_with("é") == ["é", "é1"]
        assert begin_with("\ud7ff") == ["\ud7ff"]
        assert begin_with("\U0010ffff") == ["\U0010ffff", "\U0010ffffz"]
        assert begin_with("a\U0010ffff") == []
        assert begin_with("\udcff") == begin_with("a\ud800") == []
        newest = store.recorder.select_entries(prefix="a", agent="agent", limit=2)
        assert [entry.id for entry in newest] == ["aXb", "a'\""]
        assert store.recorder.select_entries(prefix="a", status=["held"]) == []

    def test_entries_may_be_only_those_updated_after_a_moment(self, store: Store) -> None:
        create(store, "old", updated=4.0, hold="differs")
        create(store, "open", updated=6.0)
        new = create(store, "new", updated=5.0, hold="differs")
        unknown = create(store, "unknown", updated=5.0, created=2.0, hold="unknown")
        select = store.recorder.select_entries
        assert select(hold=["differs", "unknown"], after=4.0) == [new, unknown]
        assert select(hold=["differs"], after=4.0) == [new]
        assert select(hold=["differs", "unknown"], after=4.0, limit=1) == [unknown]
        assert select(hold=["differs"], after=5.0) == []
        assert [entry.id for entry in select(after=4.0)] == ["new", "open", "unknown"]
        released = new._replace(head=2, updated=7.0, hold=None)
        store.recorder.insert_events(events("new", 2), entry=released, expected=(new.birth, 1))
        assert select(hold=["differs"], after=4.0) == []

    def test_what_is_held_comes_by_kind_in_the_order_of_its_last_change(self, store: Store) -> None:
        names = (("b", 1.0), ("c", 1.0), ("a", 2.0))
        held = [create(store, name, hold="doubt", updated=updated) for name, updated in names]
        other = create(store, "other", hold="differs")
        create(store, "free")
        assert store.recorder.select_held("doubt", limit=9) == held
        assert store.recorder.select_held("differs", limit=9) == [other]
        for number, entry in enumerate(held, start=1):
            after = entry.updated, entry.id
            assert store.recorder.select_held("doubt", after=after, limit=1) == held[number : number + 1]


class Due(Suite):
    """What recovery asks."""

    def test_ready_is_what_is_due_known_and_not_of_a_busy_owner(self, store: Store) -> None:
        late = create(store, "a", due=3.0)
        early = create(store, "b", due=1.0, owner="dead")
        same = create(store, "c", due=1.0)
        create(store, "busy", due=1.0, owner="alive")
        create(store, "ended", owner="dead")
        create(store, "future", due=3.5)
        create(store, "unknown", due=1.0, agent="other")

        def ready(limit: int = 9, agents: tuple[str, ...] = ("agent", "third"), **after: Place) -> list[IndexRow]:
            return store.recorder.select_ready(3.0, agents=agents, busy_owners={"alive"}, limit=limit, **after)

        assert ready() == [early, same, late]
        assert ready(limit=1) == [early]
        assert ready(agents=()) == []
        assert [ready(after=after) for after in ((1.0, "b"), (1.0, "c"), (3.0, "a"))] == [[same, late], [late], []]
        everyone = store.recorder.select_ready(9.0, agents={"agent", "other"}, busy_owners=(), limit=99)
        assert [entry.id for entry in everyone] == ["b", "busy", "c", "unknown", "a", "future"]

    def test_the_earliest_of_many_agents_are_ready_in_one_order(self, store: Store) -> None:
        rows = [create(store, f"t{n:02}", agent=f"agent-{n % 3}", due=float(n * 7 % 10)) for n in range(30)]
        rows.sort(key=place)

        def ready(limit: int, after: Place = START) -> list[IndexRow]:
            agents = [f"agent-{n}" for n in range(4)]
            return store.recorder.select_ready(9.0, agents=agents, busy_owners=(), after=after, limit=limit)

        for limit in (1, 2, 7, 30, 99):
            assert ready(limit) == rows[:limit]
            assert ready(limit, place(rows[9])) == rows[10 : 10 + limit]

    def test_the_next_that_is_due_is_one_of_a_known_agent_that_is_not_due_yet(self, store: Store) -> None:
        create(store, "ended")
        for number, agent in enumerate(("agent", "other", "agent", "third"), start=1):
            create(store, agent=agent, task_id=f"t{number}", due=float(number))

        def next_due(after: float, *agents: str) -> float | None:
            return store.recorder.next_due(after, agents=agents)

        assert [next_due(after, "agent") for after in (0.0, 1.0, 2.5, 3.0)] == [1.0, 3.0, 3.0, None]
        assert [next_due(0.0), next_due(0.0, "unknown"), next_due(0.0, "third", "other", "unknown")] == [
            None,
            None,
            2.0,
        ]


class Text(Suite):
    """Text of any kind, in every place that takes one."""

    def test_hostile_text_comes_back(self, store: Store) -> None:
        text = "'; DROP TABLE task_index; -- \x00 é\u202e 💻 %s {} \\"
        recorder = store.recorder
        entry = create(store, text, note=text, agent=text)
        assert recorder.select_entry(text) == entry
        assert recorder.select_rows([text]) == {text: entry}
        assert recorder.select_entries(agent=text) == [entry]
        assert recorder.select_entries(prefix=text) == recorder.select_entries(prefix=text[:-1]) == [entry]
        assert recorder.select_ids() == [text]
        recorder.save_emissions(text, entry.birth, [said(text, text)._replace(channel=text)])
        (found,) = recorder.select_emissions(text, entry.birth, upto=1, limit=1)
        assert (found.path, found.channel, found.value) == (text, text, text)
        recorder.save_heartbeat(text, text, text, 1, text)
        assert recorder.select_heartbeat(text, text, text) == (1, text)
        recorder.delete_heartbeats(text, text)
        assert recorder.select_heartbeat(text, text, text) is None
