"""`verify` and `reindex`: each damage is named with its place, a sound store has none, and little memory is needed."""

from __future__ import annotations

import re
import sqlite3
import sys
import threading
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from actors import AgentSystem, Entity, agent, emit, entity, event, heartbeat, receive, spawn_child, step
from actors.appender import Appender
from actors.mapper import TaskMapper
from actors.task_log import TaskLog
from actors.verify import Read, verify
from domain.events import Completed
from stores import Store, open_store
from stores.sqlite_file import PAGE_SIZE
from tests.families import Unclaimed, children_of, unknown_to_workers
from tests.lives import PATIENCE, wait_for
from tests.shell import Shell


class Jar(Entity):
    TOPIC = "verify.jar"

    def __init__(self) -> None:
        self.coins = 0

    def put(self, coins: int) -> None:
        self.added(coins)

    @event("Put")
    def added(self, coins: int) -> None:
        self.coins += coins


@step
def work(word: str) -> str:
    heartbeat(word)
    emit(word)
    return word * 10


@agent(name="verify: work")
def working(word: str) -> str:
    entity(Jar, "one").ask(Jar.put, 1)
    return work(word)


@agent(name="verify: waits")
def waiting() -> Any:
    return receive("go")


@agent(name="verify: parent")
def parent() -> Any:
    return spawn_child(unknown_to_workers, on_parent_end="abandon").result()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with a bit of everything, and nobody at work."""
    file = tmp_path / "tasks.db"
    with Unclaimed(), AgentSystem(f"sqlite:///{file}") as system:
        for word in ("one", "two"):
            system.spawn(working, word, id=word).result(PATIENCE)
        open_tasks = [system.spawn(waiting, id="open"), system.spawn(parent, id="parent")]
        wait_for(lambda: all(task.status() == "waiting" for task in open_tasks))
    return file


def found(path: Path) -> list[str]:
    with open_store(f"sqlite:///{path}") as store:
        return list(verify(TaskLog(store), Read()))


def edit(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for sql in statements:
            assert connection.execute(sql).rowcount > 0


def test_a_sound_store_has_nothing_wrong_and_all_of_it_was_read(path: Path) -> None:
    read = Read()
    with open_store(f"sqlite:///{path}") as store:
        assert list(verify(TaskLog(store), read)) == []
        rows = [row for name in store.recorder.select_ids() for row in store.recorder.select_events(name)]
    assert (read.tasks, read.entities, read.events) == (5, 1, len(rows))


ONE = "WHERE originator_id='one' AND originator_version"
JAR = "WHERE originator_id LIKE 'verify.jar%' AND originator_version"
DAMAGES = {
    f"UPDATE stored_events SET state=x'' {ONE}=3": "^task one: version 3 of its log cannot be read: [^;]*$",
    "UPDATE stored_events SET state=x'' WHERE originator_id='open' AND originator_version=2": "^task open: version 2 "
    "of its log cannot be read: .*; mended, it goes on after: perdure release open$",
    f"UPDATE stored_events SET topic='task.completed' {ONE}=3": "^task one: version 3 .*checksum does not match",
    f"DELETE FROM stored_events {ONE}=2": r"^task one: version 3 .* is where version 2 is expected",
    f"DELETE FROM stored_events {ONE}=1": r"^task one: version 2 .*(checksum|task\.created)",
    f"DELETE FROM stored_events {ONE}>5": "^task one: its index row has head [0-9]+, its log says 5; .*perdure reindex",
    "UPDATE task_index SET status='failed' WHERE id='two'": "^task two: its index row has status 'failed', its log says"
    " 'completed'; stop the workers, then: perdure reindex$",
    "UPDATE task_index SET birth='x' WHERE id='open'": "^task open: its index row has birth 'x', its log says",
    "DELETE FROM task_index WHERE id='open'": "^task open: the index has no row of it; .*perdure reindex",
    "DELETE FROM stored_events WHERE originator_id='open'": "^task open: the index has a row of it, and its log",
    "INSERT INTO heartbeats VALUES ('ghost', '1', 'b', 1, 'x')": "^task ghost: heartbeats of birth b that no task has,"
    " 1; they go by: perdure vacuum$",
    "UPDATE emissions SET birth='x' WHERE task_id='one'": "^task one: emissions of birth x that no task has, 1; ",
    f"UPDATE stored_events SET state=CAST(state||'?' AS BLOB) {JAR}=2": "^entity verify.jar one: version 2: its check",
    f"DELETE FROM stored_events {JAR}=2": "^entity verify.jar one: version 2: it is missing$",
    f"UPDATE stored_events SET state=x'00' {JAR}=1": "^entity verify.jar one: version 1: ",
    "UPDATE task_index SET head=1 WHERE status='entity'": "^entity verify.jar one: its index row has head 1, its log s",
}


@pytest.mark.parametrize(("sql", "told"), DAMAGES.items(), ids=DAMAGES)
def test_each_damage_is_named_with_its_place_and_is_the_only_one(path: Path, sql: str, told: str) -> None:
    edit(path, sql)
    faults = found(path)
    assert_only(faults, told)


OBJECTS = {
    "DROP INDEX task_ready": "the index task_ready is missing",
    "DROP INDEX task_held": "the index task_held is missing",
    "DROP TABLE beats": "the table beats is missing",
    "ALTER TABLE task_index ADD COLUMN x TEXT": "the table task_index is not made as perdure makes it",
    "CREATE TABLE copy AS SELECT * FROM task_index; DROP TABLE task_index; ALTER TABLE copy RENAME TO task_index": "the"
    " index task_held is missing",
    "CREATE TRIGGER t AFTER INSERT ON beats BEGIN DELETE FROM beats; END": "the trigger t of table beats is none of",
    "CREATE UNIQUE INDEX i ON task_index (agent, id)": "the index i of table task_index is none of perdure's",
}


@pytest.mark.parametrize(("sql", "told"), OBJECTS.items(), ids=OBJECTS)
def test_what_the_file_is_made_of_is_compared_with_what_it_should_be(path: Path, sql: str, told: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(sql)
    assert found(path)[0].startswith(f"sqlite:///{path}: {told}")


def test_a_table_and_statistics_that_somebody_has_added_are_no_damage(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE notes (text); ANALYZE; INSERT INTO beats VALUES ('w', 1, 10)")
    assert found(path) == []


def test_two_rows_of_a_task_are_named_wherever_a_page_ends(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE TABLE copy AS SELECT * FROM task_index; DROP TABLE task_index; ALTER TABLE copy RENAME TO"
            " task_index; INSERT INTO task_index SELECT * FROM task_index WHERE id='two'"
        )
    for page in (1, 2, 3, 500):
        monkeypatch.setattr(sys.modules[verify.__module__], "PAGE", page)
        assert [fault for fault in found(path) if "two rows" in fault] == [
            "task two: the index has two rows of it; stop the workers, then: perdure reindex"
        ]


EMITTED = {
    "value='{'": "what it emitted, [0-9]+.1, cannot be read: its value is no JSON: ",
    "value=''": "what it emitted, [0-9]+.1, cannot be read: its value is no JSON: ",
    "kind='x'": "what it emitted, [0-9]+.1, cannot be read: its kind is 'x'",
    "base=base+1000": "what it emitted, [0-9]+.1, is of version ",
    "base=-base": "what it emitted, -[0-9]+.1, is of version ",
}


@pytest.mark.parametrize(("change", "told"), EMITTED.items(), ids=EMITTED)
def test_what_was_emitted_and_cannot_be_read_is_named(path: Path, change: str, told: str) -> None:
    edit(path, f"UPDATE emissions SET {change} WHERE task_id='one'")
    (fault,) = found(path)
    assert re.match(f"task one: {told}", fault), fault


def test_what_is_missing_between_two_emissions_is_named(path: Path) -> None:
    edit(path, "UPDATE emissions SET number=3 WHERE task_id='one'")
    assert found(path) == []  # the oldest are not kept for ever
    columns = "path, attempt, activation, kind, channel, at, value"
    edit(
        path,
        f"INSERT INTO emissions (task_id, birth, base, number, {columns})"
        f" SELECT task_id, birth, base, 5, {columns} FROM emissions WHERE task_id='one'",
    )
    (fault,) = found(path)
    assert re.fullmatch(r"task one: what it emitted, \d+.5, does not follow number 3: .* lost", fault), fault


@pytest.mark.parametrize(
    ("table", "column"),
    [("task_index", "id"), ("task_index", "note"), ("stored_events", "originator_id"), ("emissions", "task_id")],
)
def test_bytes_where_a_text_is_expected_are_named_and_no_command_stumbles(
    path: Path, shell: Shell, table: str, column: str
) -> None:
    which = {"id": "id='two'", "note": "id='two'", "originator_id": "originator_version=1", "task_id": "TRUE"}[column]
    edit(path, f"UPDATE {table} SET {column}=CAST({column} AS BLOB) WHERE {which}")
    assert found(path)[0].startswith(f"sqlite:///{path}: {table} has a value of type blob as {column}, which is TEXT,")
    for command in ("verify", "list", "reindex", "tree", "approvals"):
        done = shell(command, *at(path))
        assert "Traceback" not in done.stderr, done.stderr
        if command == "verify":
            assert done.returncode == 1
        elif done.returncode == 2:
            assert "is expected; all such places are named by: perdure verify" in done.stderr


def test_a_follower_says_what_cannot_be_read_after_what_can(path: Path, shell: Shell) -> None:
    edit(path, "UPDATE emissions SET value='garbage' WHERE task_id='one'")
    done = shell("show", "one", "--follow", *at(path))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert re.search("task one: what it emitted, [0-9]+.1, cannot be read: its value is no JSON.*verify", done.stderr)
    assert "begins" in done.stdout or "work" in done.stdout


def assert_only(faults: list[str], told: str) -> None:
    """All that is told is of one task or entity, and the first of it is this."""
    assert faults, "nothing was found"
    assert re.search(told, faults[0]), faults
    assert {fault.split(":")[0] for fault in faults} == {faults[0].split(":")[0]}


@pytest.mark.parametrize("at", [0, 9, 30, -1])
def test_four_flipped_bytes_inside_a_value_are_named_with_task_and_version(path: Path, at: int) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        ((state,),) = connection.execute(f"SELECT state FROM stored_events {ONE}=6").fetchall()
        start = at if at >= 0 else len(state) - 4
        spoilt = state[:start] + bytes(byte ^ 0x55 for byte in state[start : start + 4]) + state[start + 4 :]
        connection.execute(f"UPDATE stored_events SET state=? {ONE}=6", (spoilt,))
    assert_only(found(path), "^task one: version 6 of its log cannot be read: ")


def test_what_stands_behind_an_ending_is_named(path: Path) -> None:
    with open_store(f"sqlite:///{path}") as store:
        row = store.recorder.select_entry("one")
        assert row is not None
        second = Completed("one", row.head + 1, 1.0, "twice")
        stored = TaskMapper().to_stored_event(second, birth=row.birth)
        entry = row._replace(head=row.head + 1, updated=1.0)
        store.recorder.insert_events([stored], entry=entry, expected=(row.birth, row.head))
    assert found(path) == [
        f"task one: version {entry.head} is task.completed, and it ended before, by task.completed",
    ]


def test_a_parent_that_has_heard_of_no_end_of_a_child_that_is_gone_is_named(path: Path) -> None:
    with open_store(f"sqlite:///{path}") as store:
        (child,) = children_of(store, "parent")
        row = store.recorder.select_entry(child)
        assert row is not None
        store.recorder.delete_task(child, expected=(row.birth, row.head))
    assert found(path) == [f"task parent: its child {child} is gone, and it was told of no end: perdure cancel parent"]


def test_a_mended_task_that_is_still_held_is_named_with_what_lets_it_go_on(path: Path) -> None:
    edit(path, "UPDATE task_index SET status='held', hold='unreadable', due=NULL WHERE id='open'")
    assert found(path) == ["task open: its log can be read, and it is still held: perdure release open"]


def test_a_damaged_page_is_named_and_what_else_can_be_read_is_looked_at(path: Path) -> None:
    with open_store(f"sqlite:///{path}") as store:
        log = TaskLog(store)
        for number in range(300):
            log.create(f"more{number:03}", waiting.name, [["x" * 100], {}], {})
    content = bytearray(path.read_bytes())
    victim = content.index(b'"' + b"x" * 100)
    page = victim // PAGE_SIZE
    content[page * PAGE_SIZE : (page + 1) * PAGE_SIZE] = b"\xff" * PAGE_SIZE
    path.write_bytes(content)
    faults = found(path)
    assert any("Tree" in fault or "page" in fault for fault in faults), faults
    assert any(fault.startswith(f"sqlite:///{path}: damaged") or "malformed" in fault for fault in faults), faults


def test_nothing_is_wrong_with_a_store_while_workers_are_at_work_on_it(path: Path) -> None:
    over, faults = threading.Event(), list[str]()

    def look() -> None:
        while not over.is_set():
            faults.extend(found(path))

    with AgentSystem(f"sqlite:///{path}") as system:
        looking = threading.Thread(target=look)
        looking.start()
        for number in range(60):
            task = system.spawn(working, "x", id=f"w{number}")
            if number % 3 == 0:
                task.result(PATIENCE)
                task.delete()
        system.task("open").signal("go", 1)
        for number in range(60):
            if number % 3:
                system.task(f"w{number}").result(PATIENCE)
        over.set()
        looking.join(PATIENCE)
    assert faults == []
    assert found(path) == []


def signalled(log: TaskLog) -> None:
    Appender(log, log.load("open")).append(lambda task, now: task.receive(now, "key", "go", 1, "ann"))


def deleted(log: TaskLog) -> None:
    row = log.recorder.select_entry("open")
    assert row is not None
    log.recorder.delete_task("open", expected=(row.birth, row.head))


@pytest.mark.parametrize("change", [signalled, deleted])
def test_what_changes_between_two_reads_is_not_taken_for_damage(
    path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[TaskLog], None]
) -> None:
    with open_store(f"sqlite:///{path}") as store, open_store(f"sqlite:///{path}") as other:
        select, changed = store.recorder.select_events, list[str]()

        def select_after_a_change(name: str, **bounds: Any) -> Any:
            if name == "open" and not changed:
                changed.append(name)
                change(TaskLog(other))
            return select(name, **bounds)

        monkeypatch.setattr(store.recorder, "select_events", select_after_a_change)
        assert list(verify(TaskLog(store), Read())) == []
        assert changed


def big(store: Store, count: int) -> None:
    """Fill a store with tasks that have not begun, by the statements of an append, many in one transaction."""
    log = TaskLog(store)
    log.create("t", waiting.name, [["x" * 400], {}], {})
    recorder: Any = store.recorder
    mapper, row = TaskMapper(), recorder.select_entry("t")
    (created,) = log.events.get("t")

    def insert(cursor: sqlite3.Cursor) -> None:
        for number in range(count):
            name = f"n{number:06}"
            facts = vars(created) | {"originator_id": name}
            event = mapper.to_stored_event(type(created)(*facts.values()), birth=row.birth)
            cursor.execute("INSERT INTO task_index VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)", row._replace(id=name))
            cursor.execute("INSERT INTO stored_events VALUES (?,?,?,?)", (name, 1, event.topic, event.state))

    recorder.datastore.write(insert)


def test_memory_does_not_grow_with_the_number_of_tasks(tmp_path: Path) -> None:
    peaks = []
    for count in (2_000, 8_000):
        with open_store(f"sqlite:///{tmp_path}/{count}.db") as store:
            big(store, count)
            tracemalloc.start()
            read = Read()
            faults = list(verify(TaskLog(store), read))
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        assert (faults, read.tasks) == ([], count + 1)
    assert peaks[1] < peaks[0] * 1.5


# ------------------------------------------------------------------ the commands


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def at(path: Path) -> tuple[str, str]:
    return "--store", f"sqlite:///{path}"


def test_verify_says_that_a_store_is_sound_or_what_is_wrong_and_ends_with_1(path: Path, shell: Shell) -> None:
    done = shell("verify", *at(path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"sqlite:///{path}: 5 tasks, 1 entity, ")
    assert done.stdout.endswith(" events: sound\n")
    edit(path, f"UPDATE stored_events SET state=x'' {ONE}=3")
    done = shell("verify", *at(path))
    assert done.returncode == 1
    assert done.stdout.startswith("task one: version 3 of its log cannot be read")
    assert done.stderr.endswith("1 thing is wrong\n")


@pytest.mark.parametrize("damage", [b"x" * 60, b"SQLite format 3\0" + b"\xff" * 60])
def test_verify_names_a_damaged_header_and_changes_nothing(path: Path, shell: Shell, damage: bytes) -> None:
    content = damage + path.read_bytes()[len(damage) :]
    path.write_bytes(content)
    done = shell("verify", *at(path))
    assert done.returncode == 1
    assert done.stdout.startswith(f"sqlite:///{path}: damaged, or not a store of perdure")
    assert path.read_bytes() == content


REPAIRS: dict[str, Callable[[Path], None]] = {
    "a row is lost": lambda path: edit(path, "DELETE FROM task_index WHERE id='open'"),
    "all rows are lost": lambda path: edit(path, "DELETE FROM task_index"),
    "a row is another": lambda path: edit(path, "UPDATE task_index SET status='completed', due=NULL WHERE id='open'"),
    "a log is lost": lambda path: edit(path, "DELETE FROM stored_events WHERE originator_id='two'"),
}


@pytest.mark.parametrize("damage", REPAIRS.values(), ids=REPAIRS)
def test_reindex_makes_the_index_again_and_the_store_is_sound(
    path: Path, shell: Shell, damage: Callable[[Path], None]
) -> None:
    damage(path)
    assert found(path)
    done = shell("reindex", *at(path))
    assert (done.returncode, done.stderr) == (0, "")
    assert " tasks, 1 entity\n" in done.stdout
    with open_store(f"sqlite:///{path}") as store:
        store.vacuum()  # what a lost log has left behind
    assert found(path) == []
    with AgentSystem(f"sqlite:///{path}") as system:
        system.task("open").signal("go", 7)
        assert system.task("open").result(PATIENCE) == 7


def test_reindex_names_what_cannot_be_read_and_is_refused_while_a_worker_lives(path: Path, shell: Shell) -> None:
    edit(path, f"UPDATE stored_events SET state=x'' {ONE}=3")
    done = shell("reindex", *at(path))
    assert done.returncode == 1
    assert done.stderr.startswith("task one: version 3 of its log cannot be read")
    with AgentSystem(f"sqlite:///{path}"):
        done = shell("reindex", *at(path))
        assert done.returncode == 2
        assert "the index cannot be rebuilt while a worker lives" in done.stderr


def test_delete_deletes_one_task_by_its_whole_id_or_all_by_age(path: Path, shell: Shell) -> None:
    done = shell("delete", "one", *at(path))
    assert (done.returncode, done.stdout) == (0, "one: deleted\n")
    assert "some text may still stand in unused parts of the file, until: perdure vacuum --store" in done.stderr
    refusals = {
        ("one",): "there is no task 'one'",
        ("tw",): "there is no task 'tw': to delete one its whole id is wanted, such as two",
        ("open",): "task open has not ended, it is waiting, and nothing was deleted: call it off first, perdure cancel",
        (): "say one of two: a task's ID, or --older-than AGE",
        ("two", "--older-than", "1d"): "say one of two",
        ("--older-than", "1 month"): "--older-than takes a number and s, m, h, d or w, such as 30d, not '1 month'",
        ("--older-than", "999999999w"): "--older-than is at most ",
        ("--older-than", "0s", "--status", "open"): "--status: only what has ended is deleted, completed",
        ("--older-than", "0s", "--force"): "--force is for one task",
        ("two", "--status", "failed"): "--status goes with --older-than AGE",
        ("two", "--entity", "verify.jar"): "there is no entity 'two' of TOPIC 'verify.jar' in sqlite:///",
        ("one", "--entity", "verify.jar", "--force"): "--force is for one task",
        ("--older-than", "0s", "--entity", "verify.jar"): "--entity TOPIC is for one entity, by its ID",
    }
    for words, why in refusals.items():
        done = shell("delete", *words, *at(path))
        assert (done.returncode, done.stdout) == (2, "")
        assert why in done.stderr
    done = shell("delete", "one", "--entity", "verify.jar", *at(path))
    assert (done.returncode, done.stdout) == (0, "verify.jar one: deleted\n")
    done = shell("delete", "--older-than", "30d", *at(path))
    assert (done.stdout, done.stderr) == ("0 tasks deleted\n", "")
    done = shell("delete", "--older-than", "0s", "--status", "completed,failed", "--vacuum", *at(path))
    assert (done.stdout, done.stderr) == ("1 task deleted\n", "")
    assert b"twotwotwo" not in b"".join(file.read_bytes() for file in path.parent.glob("tasks.db*") if file.is_file())
    assert found(path) == []


def test_vacuum_gives_back_the_room_while_a_worker_is_at_work(path: Path, shell: Shell) -> None:
    with open_store(f"sqlite:///{path}") as store:
        log = TaskLog(store)
        for number in range(200):
            appender = Appender(log, log.create(f"big{number}", waiting.name, [["SECRET" * 500], {}], {}))
            appender.append(lambda task, now: task.request_cancel(now, "", "ann", 1.0))
    with AgentSystem(f"sqlite:///{path}") as system:
        assert system.delete_ended(0) == 202
        before = path.stat().st_size
        done = shell("vacuum", *at(path))
        assert (done.returncode, done.stdout, done.stderr) == (0, f"sqlite:///{path}: done\n", "")
        assert path.stat().st_size < before / 3
        assert system.spawn(working, "later").result(PATIENCE) == "later" * 10
        content = b"".join(file.read_bytes() for file in path.parent.glob("tasks.db*") if file.is_file())
    assert b"SECRET" not in content
    assert found(path) == []


def test_a_jar_is_known_to_no_command_and_its_log_is_looked_at_all_the_same(path: Path, shell: Shell) -> None:
    edit(path, f"UPDATE stored_events SET state=CAST(state||'?' AS BLOB) {JAR}=2")
    assert shell("verify", *at(path)).stdout.startswith("entity verify.jar one: version 2: its checksum")
