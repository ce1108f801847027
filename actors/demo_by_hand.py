"""`perdure demo --interactive`: a person leads one agent, kills it, restarts it, and sees what that changes.

On a screen by single keys; where there is none, by prompts that read lines.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable

from rich.console import Console, ConsoleDimensions, RenderableType
from rich.screen import Screen
from rich.text import Text

from actors.demo_agent import NOTES, TODO
from actors.demo_play import BUTTONS, CAST, KILLED, RESTART, Scene, count, log_lines, whereabouts
from actors.demo_prose import Prose
from actors.demo_puppeteer import Puppeteer, puppeteer
from actors.demo_screen import draw
from actors.demo_stage import MailServer, in_good_order
from actors.demo_terminal import END, borrowed
from actors.wording import plain, shortened

PROMPT = "next / kill / restart / quit? "
FIRST = CAST["2"]
"""The agent that begins."""
QUIT = "quit"

_WORDS = {word: button for button in (*BUTTONS, QUIT) for word in (button, button[0])}
_WORDS |= {key: key for key in CAST} | {END: QUIT}
_STARTING = "A new process is starting."
_GONE = "Its processes and its folder are gone."


def demo_by_hand() -> int:
    """Play until the person quits, and give the exit code: 0, or 130 after Ctrl-C. Its processes and folder are gone.

    SIGTERM and SIGHUP end the program as well. After a SIGKILL the folder is left behind, but no process, and the
    terminal is in order.
    """
    console = Console(highlight=False)
    return in_good_order(lambda: _on_screen(console) if has_screen() else _by_prompts(console))


def has_screen() -> bool:
    """Tell whether keys can be read here one by one, and a screen be drawn."""
    return (
        sys.stdin is not None
        and sys.stdin.isatty()
        and sys.stdout.isatty()
        and os.environ.get("TERM", "").lower() not in ("", "dumb", "unknown")
    )


def _act(hand: Puppeteer, word: str, starting: Callable[[], None]) -> str:
    """Do what was typed; says why not, where it cannot be done. `starting` is called before what takes a while."""
    command = _WORDS.get(word.lower(), "")
    if command in CAST:
        starting()
        hand.begin(CAST[command])
        return ""
    if not command:
        typed = f"{shortened(repr(word), 30)} is nothing that can be done here. " if word else ""
        return f"{typed}Say next, kill, restart or quit, or 1, 2 or 3."
    if command == RESTART:
        starting()
    why = hand.press(command)
    return f"There is no {command} now: {why}." if why else ""


# ---------------------------------------------------------------------- on a screen


def _on_screen(console: Console) -> int:
    with borrowed(sys.stdin.fileno()) as keys, console.screen():
        _show(console, lambda _: Text(_STARTING))
        with puppeteer() as hand:

            def show(news: str) -> None:
                _show(console, lambda size: draw(hand.scene, news or hand.scene.moral, size, hand.world.pid))

            hand.begin(FIRST)
            news = ""
            while True:
                show(news)
                key = keys.wait()
                if _WORDS.get(key.lower()) == QUIT:
                    break
                if key:
                    news = _act(hand, key, lambda: show(_STARTING))
                elif hand.look():
                    news = ""
            last = hand.scene
    prose = Prose(console)
    _tell(prose, last, [line for line, _ in log_lines(last)])
    _tell_mails(prose, last, last.message_ids)
    prose.say(_GONE)
    return 0


def _show(console: Console, draw_into: Callable[[tuple[int, int]], RenderableType]) -> None:
    """Draw on the whole screen, as large as it is now."""
    console.size = ConsoleDimensions(*os.get_terminal_size(sys.stdout.fileno()))
    console.update_screen(Screen(draw_into(console.size)))


# ---------------------------------------------------------------------- by prompts


def _by_prompts(console: Console) -> int:
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    prose = Prose(console)
    with puppeteer() as hand:
        _open(prose, hand.world)
        hand.begin(FIRST)
        _tell_news(prose, hand.scene, begins=True)
        while (word := _ask(console)) is not None:
            before = hand.scene
            why = _act(hand, word, lambda: None)
            if hand.scene is not before:
                _tell_news(prose, hand.scene, begins=hand.scene.task != before.task)
            if why:
                prose.line("", why)
    prose.say(_GONE)
    return 0


def _ask(console: Console) -> str | None:
    """Read a line; None where it says to quit, or there is none any more."""
    console.print(PROMPT, end="")
    line = "" if sys.stdin is None else sys.stdin.readline()
    word = line.strip()
    if not line or not sys.stdin.isatty():  # a terminal has shown it already
        console.print(Text(plain(shortened(word, 60))))
    return None if not line or _WORDS.get(word.lower()) == QUIT else word


def _open(prose: Prose, world: MailServer) -> None:
    prose.say("perdure demo: one task, led and killed by hand", "bold")
    prose.say()
    prose.say(
        f"The task: draft a summary of {NOTES}, send it by e-mail, tick it off in {TODO}. Its process stands"
        " still before each body, between an effect and its record, and after the record. Next lets it go on to there;"
        " kill is a real SIGKILL, where it stands; restart is the same command again, a new process. 1, 2 and 3 begin"
        f" anew with another agent: {', '.join(f'{part.key} {part.title}' for part in CAST.values())}."
    )
    prose.line("world", f"pid {world.pid}, SMTP on 127.0.0.1:{world.port}")


def _tell_news(prose: Prose, scene: Scene, *, begins: bool) -> None:
    """Tell what the last act has changed, and what it meant."""
    if begins:
        prose.say()
        prose.say(f"Agent {scene.part.key}: {scene.part.title}", "bold")
    for line in scene.said:
        prose.line(f"pid {scene.pid}", line)
    _tell(prose, scene, [line for line, is_new in log_lines(scene) if is_new])
    if begins or len(scene.message_ids) > scene.seen_mails:
        _tell_mails(prose, scene, scene.message_ids[scene.seen_mails :])
    prose.line("meaning", scene.moral)


def _tell(prose: Prose, scene: Scene, log: Iterable[str]) -> None:
    for line in log:
        prose.line("log" if scene.part.logged else "memory", line)
    style = "bold red" if scene.state == KILLED else ""
    prose.line("process", f"pid {scene.pid} {scene.condition}, {whereabouts(scene)}", style)


def _tell_mails(prose: Prose, scene: Scene, message_ids: Iterable[str]) -> None:
    prose.line("mailbox", ", ".join(count(scene.message_ids)))
    for message_id in message_ids:
        prose.line("", message_id)
