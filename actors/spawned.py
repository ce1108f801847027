"""What a spawn is given, checked: an agent with its arguments, an id, tags."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from actors.definitions import AnyAgent
from domain.errors import DefinitionError, InvalidTaskIdError
from domain.values import encode

ID_LIMIT = 200
"""Characters that a task's id may have."""


def bound_arguments(agent: AnyAgent, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Give positional and named arguments, as the log has them. Raises TypeError for what the agent does not take."""
    try:
        bound = agent.signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"agent {agent.name}{agent.signature}: {error}") from None
    return [list(bound.args), dict(bound.kwargs)]


def unwrapped(agent: Any, args: tuple[Any, ...]) -> tuple[AnyAgent, tuple[Any, ...], dict[str, Any]]:
    """Take an agent out of its partials. Raises DefinitionError for what is none."""
    kwargs: dict[str, Any] = {}
    while isinstance(agent, functools.partial):
        args, kwargs, agent = (*agent.args, *args), {**agent.keywords, **kwargs}, agent.func
    if not isinstance(agent, AnyAgent):
        name = getattr(agent, "__qualname__", repr(agent))
        raise DefinitionError(f"{name} is not an agent: decorate it with @agent before it is spawned")
    return agent, args, kwargs


def checked_id(id: object) -> str:
    """Check a task's id. Raises InvalidTaskIdError."""
    if not isinstance(id, str) or not 0 < len(id) <= ID_LIMIT:
        raise InvalidTaskIdError(f"a task's id has 1 to {ID_LIMIT} characters, not {id!r:.250}", task_id=str(id))
    if id.startswith("-"):
        raise InvalidTaskIdError(
            f"a task's id begins with no dash, which commands take for an option: {id!r}", task_id=id
        )
    for index, character in enumerate(id):
        if not character.isprintable():
            raise InvalidTaskIdError(
                f"a task's id has printable characters only; at index {index} there is {character!a}", task_id=id
            )
    return id


def checked_tags(tags: object) -> Any:
    """Encode tags. Raises TypeError for what is none."""
    if not isinstance(tags, Mapping):
        raise TypeError(f"tags are texts by name, not {tags!r}")
    for name, text in tags.items():
        if type(name) is not str or type(text) is not str:
            raise TypeError(f"tags are texts by name, not {name!r}: {text!r}")
    return encode(dict(tags))
