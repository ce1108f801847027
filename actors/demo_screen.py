"""The demo by hand on a screen: the log, the process, the mailbox, what the last act meant, and what each key does."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.layout import Layout
from rich.panel import Panel
from rich.text import Text

from actors.demo_play import ALIVE, BUTTONS, CAST, KILLED, Scene, count, log_lines, offer, refusal, whereabouts
from actors.wording import shortened

WIDE = 100
"""Columns from which a Message-ID is shown whole."""
LEAST = (72, 18)
"""Columns and rows below which there are no frames."""

_TITLE, _MORAL, _KEYS, _PROCESS = 1, 4, 4, 6  # rows
_ASIDE, _NEW = "bright_black", "bold bright_white"
_STATES = {ALIVE: "bold green", KILLED: "bold red"}


def draw(scene: Scene, news: str, size: tuple[int, int], server: int) -> RenderableType:
    """Draw a scene into so many columns and rows; `news` is what is said of it, `server` the mail server's process."""
    width, height = size
    if width < LEAST[0] or height < LEAST[1]:
        return Group(*_bare(scene, news, width, height))
    right = 34 if width < WIDE else 50
    left, rows = width - right, height - _TITLE - _MORAL - _KEYS
    log = "log" if scene.part.logged else "no log, only memory"
    sides, middle, whole = Layout(size=right), Layout(size=rows), Layout()
    sides.split_column(
        _framed("process", list(_process(scene, right - 4)), _PROCESS),
        _framed(f"mailbox (server: pid {server})", _mailbox(scene, right - 4, rows - _PROCESS - 2), rows - _PROCESS),
    )
    middle.split_row(_framed(log, _tail(list(_log(scene, left - 4)), rows - 2), left), sides)
    whole.split_column(
        Layout(_title(scene, width), size=_TITLE),
        middle,
        _framed("what it means", [Text(line) for line in textwrap.wrap(news, width - 4)], _MORAL),
        Layout(Group(*_keys(scene, width)), size=_KEYS),
    )
    return whole


def _framed(title: str, lines: Sequence[Text], size: int) -> Layout:
    panel = Panel(Group(*lines), title=Text(title), title_align="left", border_style=_ASIDE, padding=(0, 1))
    return Layout(panel, size=size)


def _title(scene: Scene, width: int) -> Text:
    text = f" perdure demo: draft, send by e-mail, tick off   agent {scene.part.key}: {scene.part.title}"
    return Text(shortened(text, width).ljust(width), "reverse", no_wrap=True)


def _log(scene: Scene, width: int) -> Iterator[Text]:
    for line, is_new in log_lines(scene):
        style = "bold red" if "KILLED" in line else _NEW if is_new else ""
        first, *rest = textwrap.wrap(line, width - 1, subsequent_indent=" " * (17 if width > 40 else 4))
        yield from (_line(part, style) for part in (f"{'+' if is_new else ' '}{first}", *rest))


def _process(scene: Scene, width: int) -> Iterator[Text]:
    yield _line(f"pid {scene.pid}  {scene.condition}", _STATES.get(scene.state, "bold"))
    yield from (_line(line) for line in textwrap.wrap(whereabouts(scene), width))
    yield from (_line(" ".join(line.split()), _ASIDE) for line in scene.said[-1:])


def _mailbox(scene: Scene, width: int, rows: int) -> list[Text]:
    ids = scene.message_ids
    style = "" if not ids else "bold green" if len(ids) == 1 else "bold yellow" if len(set(ids)) == 1 else "bold red"
    mails = [
        _line(f"{number} {shortened(message_id, width - 2, tail=1)}", _NEW if number > scene.seen_mails else "")
        for number, message_id in enumerate(ids, 1)
    ]
    return [_line(", ".join(count(ids)), style), *_tail(mails, rows - 1)]


def _keys(scene: Scene, width: int) -> Iterator[Text]:
    for button in BUTTONS:
        why = refusal(scene, button)
        text = shortened(f"not now: {why}" if why else offer(scene, button), width - 12)
        yield _key(button, _ASIDE if why else "") + _line(text, _ASIDE if why else "")
    agents = [_line(f"  [{part.key}] {part.title}", "bold" if part == scene.part else "") for part in CAST.values()]
    yield Text.assemble(_key("quit"), "begin anew:", *agents, no_wrap=True, overflow="ellipsis")


def _key(button: str, style: str = "") -> Text:
    return Text.assemble((f" [{button[0]}]", style or "bold cyan"), (button[1:].ljust(9), style), no_wrap=True)


def _bare(scene: Scene, news: str, columns: int, rows: int) -> Iterator[Text]:
    """Give what matters most, in lines, for where there is no room for frames."""
    width = max(20, columns)
    keys = Text(" ").join(
        Text(f"[{button[0]}]{button[1:]}", _ASIDE if button in BUTTONS and refusal(scene, button) else "bold")
        for button in (*BUTTONS, "quit")
    )
    foot = [*(Text(line) for line in textwrap.wrap(news, width)), keys]
    head = [*_process(scene, width), *_mailbox(scene, width, 1)]
    log = _tail(list(_log(scene, width)), rows - len(head) - len(foot))
    for line in [*head, *log, *foot][-rows:]:
        line.no_wrap, line.overflow = True, "ellipsis"
        yield line


def _tail(lines: Sequence[Text], rows: int) -> list[Text]:
    """Give as many of the last lines as there are rows."""
    if len(lines) <= rows:
        return list(lines)
    if rows < 1:
        return []
    return [Text(f"… {len(lines) - rows + 1} more above", _ASIDE), *lines[len(lines) - rows + 1 :]]


def _line(text: str, style: str = "") -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")
