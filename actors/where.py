"""Where in the user's own code an exception came from."""

from __future__ import annotations

import os
import traceback

import domain
import stores
from domain.faults import traceback_of


def where(error: BaseException) -> str:
    """Name the file and line from which an exception came: the innermost frame of the user's own code."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(traceback_of(error))]
    users = [place for place in frames if not _is_ours(place[0]) and not _is_stdlib(place[0])]
    file, line = (users or frames or [("nowhere", 0)])[-1]
    return f"{file}:{line}"


def users_code(error: BaseException) -> BaseException:
    """Cut our own frames off the beginning of a traceback, unless there are no others."""
    whole = trace = traceback_of(error)
    while trace is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return BaseException.with_traceback(error, trace or whole)


def _is_ours(file: str) -> bool:
    return os.path.dirname(file) in _OURS


def _is_stdlib(file: str) -> bool:
    return file.startswith("<frozen ") or (file.startswith(_STDLIB) and "-packages" not in file)


_STDLIB = os.path.dirname(os.__file__) + os.sep
_OURS = {os.path.dirname(os.path.abspath(module.__file__ or "")) for module in (domain, stores)} | {
    os.path.dirname(__file__)
}
