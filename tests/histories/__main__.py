"""Record what is not recorded yet, for this release."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

from actors.history import history_text, load_history, to_history
from actors.task_log import TaskLog
from stores import open_store
from tests.histories.agents import PROGRAMS, world
from tests.histories.facts import facts_of

ROOT = Path(__file__).parents[2]
STDLIB = Path(json.__file__).parents[1]


def main() -> None:
    folder = Path(__file__).parent / version("perdure")
    folder.mkdir(exist_ok=True)
    for name, (_, program) in PROGRAMS.items():
        path = folder / f"{name}.json"
        if not path.exists():
            store = open_store("memory:")
            world.clear()
            program(store)
            history = to_history(TaskLog(store).events.get("task"))
            text = history_text(history).replace(f"{ROOT}/", "").replace(f"{STDLIB}/", "")  # no path of this machine
            path.write_text(text + "\n", encoding="ascii")
            document = json.loads(text) | {"facts": facts_of(load_history(path))}
            path.write_text(history_text(document) + "\n", encoding="ascii")
            print(f"{path.name:28} {document['facts']['status']:10} {len(history['rows'])} events")


main()
