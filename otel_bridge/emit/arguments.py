"""Arguments of a program -> what a call works with.

Nothing here raises: a wrong argument ends no training run.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar, cast

from otel_bridge.errors import any_error_but_signals
from otel_bridge.records import status_named
from otel_bridge.values.scalars import any_text, name_of

_P = ParamSpec("_P")
_T = TypeVar("_T")
EndStatus: TypeAlias = Literal["finished", "failed", "killed"]
CountArgument: TypeAlias = Callable[[str, int, str], None]
"""Callable with a reason, a number and the name of the first argument that the reason is about."""

INTERNAL_ERROR = "internal_error"
UNKNOWN = "unknown_argument"
_EARLIEST_NS = 100_000_000_000_000_000
"""1973: a smaller number is a time in another unit."""
_END_NS = 1 << 63
"""The first number beyond a signed 64-bit integer, the largest of SQLite."""
_MAX_ROLE_CHARS = 256
"""Bounds the text of an object that is given as a role; a string stays as the program wrote it."""
DEFAULT_FLUSH_S = 10.0
"""Longest wait of `Run.flush`: training continues after it."""
DEFAULT_FINISH_S = 30.0
"""Longest wait of `Run.finish`; what is not delivered by then, the bridge still delivers."""


def counts_unknown(call: Callable[_P, _T]) -> Callable[_P, _T]:
    """Return the method *call*, which never raises.

    An argument that it does not know is dropped and counted as ``unknown_argument``.

    A framework calls all its loggers alike, with keywords of its own choice. The object of the
    method has `count_drop`. A call that fails, as where no file can be opened to import what it
    needs, is counted as ``internal_error`` and returns ``None``. Only what a signal handler of the
    program raises meanwhile passes through (`any_error_but_signals`): it may be a time limit.
    """
    positional: list[str] = []
    names: set[str] = set()
    takes_any = False
    for parameter in inspect.signature(call).parameters.values():
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            positional.append("")  # a keyword may have its name
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            takes_any = True
        else:
            names.add(parameter.name)
        if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
            positional.append(parameter.name)

    @wraps(call)
    def counted(*arguments: _P.args, **keywords: _P.kwargs) -> _T:
        try:
            return call(*arguments, **keywords)
        except any_error_but_signals():  # nothing of otel-bridge may end a training run
            owner: Any = arguments[0]
            # Looked for only now: with an unknown argument the method itself has not begun.
            taken_names = positional[: len(arguments)]
            unknown: list[str] = []
            for name in keywords:
                if name in taken_names or not (takes_any or name in names):
                    unknown.append(name)
            beyond = max(len(arguments) - len(positional), 0)
            if not unknown and not beyond:
                owner.count_drop(INTERNAL_ERROR)
                return cast("_T", None)
        first = unknown[0] if unknown else f"argument {len(positional)}"
        # Of the wrapper, which has the name that the program calls.
        where = f"{first} of {counted.__qualname__.rpartition('.')[2]}()"
        owner.count_drop(UNKNOWN, len(unknown) + beyond, where)
        for name in unknown:
            del keywords[name]
        this_call = cast("Callable[..., _T]", counted)
        return this_call(*arguments[: len(positional)], **keywords)

    return counted


def unix_ns(time_unix_ns: object, count: CountArgument) -> int:
    """Return a time in Unix ns: the one reader of times of rows and rollouts.

    0 for ``None``, and, counted as ``bad_time``, for what is not one: also for seconds, milli- or
    microseconds, which would lie in 1970.
    """
    if time_unix_ns is None:
        return 0
    try:
        number = int(cast("int", time_unix_ns))
    except any_error_but_signals():  # a user's object
        number = 0
    if (
        isinstance(time_unix_ns, (str, bytes, bool))
        or not _EARLIEST_NS <= number < _END_NS
    ):
        count("bad_time", 1, any_text(time_unix_ns))
        return 0
    return number


def status_of(status: object) -> EndStatus:
    """Return the end status of a tracker's word or an exit code.

    ``None`` is finished, anything else failed.
    """
    # ``True`` means success, though as a number it would be the exit code 1.
    if status is None or status is True:
        return "finished"
    if isinstance(status, int):
        if status:
            return "failed"
        return "finished"
    end = status_named(status) if isinstance(status, str) else None
    if end is None:
        return "failed"
    return end.value


def seconds_of(value: object, default_s: float) -> float:
    """Return the longest wait of a call in seconds; *default_s* when *value* is not a number.

    A wrong argument must neither end the program nor make it wait forever; a negative one is 0. An
    infinity waits as long as it takes.
    """
    if value is None or isinstance(value, str | bytes):
        return default_s
    try:
        number = float(cast("float", value))
    except any_error_but_signals():  # a user's object
        return default_s
    if math.isnan(number):
        return default_s
    return max(number, 0.0)


def role_of(role: object) -> str | None:
    """Return a role as text; ``None`` when *role* is missing, empty, or raises when it is read.

    The end of a longer one than 256 characters is a digest: tables and keys of metrics have it.
    """
    if role is None or (type(role) is str and len(role) <= _MAX_ROLE_CHARS):
        return role or None
    return name_of(role, _MAX_ROLE_CHARS)
