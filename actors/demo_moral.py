"""What an act of whoever plays by hand has meant, in a sentence or two."""

from __future__ import annotations

from collections.abc import Sequence

from actors.demo_play import (
    AFTER,
    ASKS,
    BEFORE,
    ENDED,
    GAP,
    KILLED,
    TOLD,
    Scene,
    Stop,
    done,
    following,
)


def moral(before: Scene | None, after: Scene) -> str:
    """Say in a sentence or two what the last act meant: the one that led from one scene to the other."""
    if after.state == KILLED:
        return _death(after) if after.part.logged else _naive_death(after)
    if after.state == ENDED:
        return _end(before, after)
    if after.stop is None:
        return "It does not stand anywhere."
    if before is None or before.pid != after.pid:
        return _rise(before, after, after.stop)
    return _advance(before, after, after.stop) if after.part.logged else _naive_advance(after, after.stop)


def _death(scene: Scene) -> str:
    if scene.stop is None:
        return "It died before anything of it ran: a restart begins as if it had never been."
    place, step = scene.stop.place, scene.stop.step
    asks = scene.part.asks and step == "send_email"
    settled = "asks before it runs it again" if asks else "runs it again with the same key"
    next_step = following(step)
    return {
        BEFORE: f"It died before the body. The log has only that {step} began, so it is in doubt; a restart {settled}.",
        GAP: f"It died between the effect and the record: {step} is in doubt; a restart {settled}.",
        AFTER: "It died after the record: nothing is in doubt; a restart "
        + (f"goes on with {next_step}, and runs no finished step." if next_step else "has only to end the task."),
        ASKS: f"It died before it asked: {step} is still in doubt, and a restart asks.",
        TOLD: "It died with the answer, and what is not in the log was never learnt; a restart asks again.",
    }[place]


def _naive_death(scene: Scene) -> str:
    if not scene.message_ids and scene.stop in (None, Stop(BEFORE, "draft_summary", 1)):
        return "It died before it had done anything: nothing is lost."
    out = ". The mail is out all the same" if scene.message_ids else ""
    return f"What it had done only its memory knew, and that is gone{out}. A restart begins at the first step."


def _end(before: Scene | None, after: Scene) -> str:
    if after.code != 0:
        why = f": {after.said[-1]}" if after.said else ""
        return f"It ended by itself with exit code {after.code}{why}."
    restarted = before is not None and before.pid != after.pid
    if restarted and after.part.logged and after.version == after.seen_version:
        return "The task had ended before: its result came from the log, and nothing ran."
    first = "Every step was in the log, so it had only to end the task" if restarted else "The task is done"
    return f"{first}. {_verdict(after.message_ids)}"


def _verdict(message_ids: Sequence[str]) -> str:
    mails, different = len(message_ids), len(set(message_ids))
    if mails < 2:
        return f"{'One' if mails else 'No'} e-mail has arrived."
    if different == 1:
        return f"{mails} e-mails have arrived under one Message-ID: the world can tell that they are the same."
    return f"{mails} e-mails have arrived under {different} Message-IDs: nobody can tell that they are the same."


def _rise(before: Scene | None, after: Scene, stop: Stop) -> str:
    if before is None:
        known = "The log has the task, and that its first step begins" if after.part.logged else "It has begun"
        return f"{known}. Press next, and kill it where you like."
    if not after.part.logged:
        out = ", though the mail is out" if after.message_ids else ""
        return f"A new process, which remembers nothing: it begins at the first step{out}."
    step, attempt = stop.step, stop.attempt
    if stop.place == ASKS:
        return f"{step} is in doubt, but it can be asked: has_arrived, its on_doubt, is called before anything runs."
    if attempt > 1:
        again = f"it runs again with the same key, as attempt {attempt}"
        return f"{step} was in doubt: {again}. No finished step ran again."
    return f"Finished steps came from the log and did not run: the task goes on at {step}."


def _advance(before: Scene, after: Scene, stop: Stop) -> str:
    place, step = stop.place, stop.step
    effect = _effect(step, after.message_ids)
    asked = before.stop is not None and before.stop.place == TOLD
    if place == BEFORE and asked:
        return f"It has not happened, so its body may run: with the same key, as attempt {stop.attempt}."
    if place == AFTER and asked:
        return f"The answer is in the log as the outcome of {step}: it never runs again, and there is no second mail."
    answer = after.said[-1].split("  ")[-1].strip() if after.said else "it has an answer"
    return {
        BEFORE: f"The log has that {step} begins, before its body runs: whoever comes after a death knows of it.",
        GAP: f"{effect}, and the log does not know it yet: a gap that nobody can close.{_hint(step, after)}",
        AFTER: f"Its record is committed: {step} never runs again, whatever dies.",
        ASKS: f"{step} is in doubt: it asks first.",
        TOLD: f"It asked, and {answer}. That is not in the log yet.",
    }[place]


def _naive_advance(scene: Scene, stop: Stop) -> str:
    if stop.place == BEFORE:
        return "What went before is done, and nobody knows it but the memory of this process."
    effect = _effect(stop.step, scene.message_ids)
    return f"{effect}, and nobody knows it but the memory of this process.{_hint(stop.step, scene)}"


def _effect(step: str, mails: Sequence[str]) -> str:
    """Say what the body that has just ended has done; of a second mail besides whether the world can tell."""
    if step != "send_email" or len(mails) < 2:
        return done(step, mails).capitalize()
    return f"The mail is out again, under {'the same' if mails[-1] in mails[:-1] else 'another'} Message-ID"


def _hint(step: str, scene: Scene) -> str:
    return " Kill it here!" if step == "send_email" and len(scene.message_ids) == 1 else ""
