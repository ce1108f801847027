"""What `--json` prints: one document, whose keys stay; times are in ISO 8601, in UTC, values are plain JSON.

A history in it has the values exactly as the log holds them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from actors.check import Verdict
from actors.history import history_text, to_history
from actors.showing import plain_json
from actors.updates import ApprovalAsked, Update
from actors.view import ApprovalView, describe, state_of
from domain.events import Completed, Released, StepSucceeded, TaskEvent
from domain.faults import Fault
from domain.record import StepRecord
from domain.state import idempotency_key
from domain.task import AgentTask
from domain.values import loads
from stores import IndexRow


def text_of(document: Any) -> str:
    """Write a document, in ASCII, so that no terminal and no locale can change it; a history in it by its rows."""
    if "history" not in document:
        return json.dumps(document, indent=2)
    rest = {key: value for key, value in document.items() if key != "history"}
    history = history_text(document["history"]).replace("\n", "\n  ")
    return f'{json.dumps(rest, indent=2)[:-2]},\n  "history": {history}\n}}'


def moment(seconds: float | None) -> str | None:
    """Give a moment of Unix time in ISO 8601.

    >>> moment(1793529667.25)
    '2026-11-01T10:41:07.250Z'
    """
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def row_document(row: IndexRow, workers: Collection[str], where: str) -> dict[str, Any]:
    """Give a task as `list` has it; `workers` are the living ones, `where` says where it is or why not."""
    return {
        "id": row.id,
        "status": row.status,
        "agent": row.agent,
        "created": moment(row.created),
        "updated": moment(row.updated),
        "due": moment(row.due) if row.status in ("queued", "waiting") else None,
        "worker": row.owner,
        "worker_lives": row.owner in workers if row.owner is not None else None,
        "strikes": row.strikes,
        "hold": row.hold if row.status == "held" else None,
        "where": where,
    }


def task_document(
    task: AgentTask, events: list[TaskEvent], workers: Collection[str], unreadable: Exception | None = None
) -> dict[str, Any]:
    """Give everything about a task, its log included; `unreadable` says why that does not go on."""
    view = describe(task)
    return {
        "id": task.id,
        "status": task.status,
        "agent": task.agent,
        "parent": view.parent,
        "created": moment(task.created),
        "updated": moment(task.updated),
        "due": moment(task.due) if task.status in ("queued", "waiting") else None,
        "worker": task.worker,
        "worker_lives": task.worker in workers if task.worker is not None else None,
        "activation": task.activation,
        "strikes": view.strikes,
        "version": task.version,
        "tags": dict(task.tags),
        "arguments": plain_json(task.input),
        "value": plain_json(task.ending.value) if isinstance(task.ending, Completed) else None,
        "hold": view.hold,
        "why": view.why or None,
        "error": _fault(view.fault),
        "cancel": view.cancel,
        "waits": view.waits or None,
        "approvals": [approval_document(task, approval) for approval in view.approvals],
        "undos": list(view.undos),
        "children": list(view.children),
        "steps": [_step(task, record) for record in task.steps.values()],
        "unreadable": str(unreadable) if unreadable is not None else None,
        "history": to_history(events),
    }


def approval_document(task: AgentTask, approval: ApprovalView) -> dict[str, Any]:
    """Give an approval that nobody has answered."""
    return {
        "id": approval.id,
        "task": approval.task_id,
        "question": approval.question,
        "details": plain_json(task.pauses[approval.path].details),
        "asked": moment(approval.at),
        "waited_for": approval.waited_for,
    }


def update_document(update: Update) -> dict[str, Any]:
    """Give an update as a program reads it: its cursor, its class as the type, its time, and its own fields."""
    facts = dict(vars(update))
    document = {"cursor": facts.pop("cursor"), "type": type(update).__name__, "at": moment(facts.pop("at"))}
    if "stored" in facts:
        facts["details" if isinstance(update, ApprovalAsked) else "value"] = plain_json(loads(facts.pop("stored")))
    times = {name: moment(facts[name]) for name in ("until", "retry_at") if name in facts}
    return document | facts | times


def check_document(url: str, verdicts: list[Verdict], counts: Mapping[str, int]) -> dict[str, Any]:
    """Give what a check has found."""
    return {"store": url, "counts": dict(counts), "tasks": [_verdict(verdict) for verdict in verdicts]}


def _step(task: AgentTask, record: StepRecord) -> dict[str, Any]:
    outcome = record.outcome
    decided = outcome if isinstance(outcome, Released) else record.settled
    given = isinstance(outcome, StepSucceeded) or (isinstance(outcome, Released) and outcome.decision == "value")
    return {
        "path": record.path,
        "kind": record.kind,
        "name": record.name,
        "label": record.label,
        "attempt": record.attempt,
        "state": state_of(record),
        "began": moment(record.began),
        "due": moment(record.retry_at),
        "value": plain_json(getattr(outcome, "value", None)) if given else None,
        "decision": decided.decision if decided is not None else None,
        "by": decided.by if decided is not None else None,
        "errors": [_fault(fault) for fault in record.errors],
        "idempotency_key": idempotency_key(task.birth, record.path),
    }


def _fault(fault: Fault | None) -> dict[str, Any] | None:
    if fault is None:
        return None
    return {
        "kind": fault.kind,
        "kinds": list(fault.kinds),
        "message": fault.message,
        "causes": list(fault.causes),
        "traceback": fault.traceback,
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    row, misfit = verdict.row, verdict.misfit
    return {
        "id": row.id,
        "agent": row.agent,
        "status": row.status,
        "verdict": verdict.word,
        "reason": misfit.reason if misfit else None,
        "position": (misfit.path or None) if misfit else None,
        "log": (misfit.log or None) if misfit else None,
        "code": (misfit.code or None) if misfit else None,
        "message": misfit.message if misfit else None,
        "notes": list(verdict.notes),
    }
