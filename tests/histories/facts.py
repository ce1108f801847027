"""What a history says of its task besides its rows: facts that every later release has to find in them."""

from __future__ import annotations

from typing import Any

from actors.view import describe
from domain.events import Completed
from domain.state import idempotency_key
from domain.task import AgentTask


def facts_of(task: AgentTask) -> dict[str, Any]:
    view = describe(task)
    return {
        "status": view.status,
        "hold": view.hold,
        "activation": view.activation,
        "strikes": view.strikes,
        "tags": view.tags,
        "due": task.due,
        "value": task.ending.value if isinstance(task.ending, Completed) else None,
        "fault": str(view.fault) if view.fault is not None else None,
        "steps": [
            {
                "path": step.path,
                "kind": step.kind,
                "name": step.name,
                "label": step.label,
                "attempt": step.attempt,
                "state": step.state,
                "errors": [str(error) for error in step.errors],
                "key": idempotency_key(task.birth, step.path),
            }
            for step in view.steps
        ],
    }
