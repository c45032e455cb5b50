"""Finds the object whose method calls an adapter, and how that method ends, where a framework does not pass it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from otel_bridge.errors import any_error_but_signals

_SEARCHED_FRAMES = 13
"""Most frames up the stack that are searched."""


def calling_object(is_wanted: Callable[[Any], bool]) -> Any:
    """Return ``self`` of the nearest calling method for which *is_wanted* is true, ``None`` without one.

    Frameworks call a logger or callback from methods of the object, a few frames up: 13 are
    searched, since a search of the whole stack would be a cost of each row.

    Args:
        is_wanted: Returns whether an object is the wanted one; one on which it raises is not.
    """
    method = _calling_method(
        lambda frame: _holds(is_wanted, frame.f_locals.get("self"))
    )
    if method is None:
        return None
    return method.f_locals.get("self")


def calling_argument(name: str) -> Any:
    """Return the argument *name* of the nearest calling method that has it, ``None`` without one.

    Raises `KeyError` where the method has deleted the variable; callers are `guarded`.
    """
    method = _calling_method(
        lambda frame: name in frame.f_code.co_varnames[: frame.f_code.co_argcount]
    )
    if method is None:
        return None
    return method.f_locals[name]


def _calling_method(is_searched: Callable[[FrameType], bool]) -> FrameType | None:
    """Return the frame of the nearest calling method for which *is_searched* is true, ``None`` without one.

    The search leaves no frame alive, and so no local variable of a caller. Before Python 3.13
    ``f_locals`` is a snapshot that stays in its frame. So it is not read in the adapter's own
    frame, which the snapshot would then contain, nor in a function without ``self``, such as the
    user's ``main()``, where a later ``del`` must free a model.
    """
    frame = inspect.currentframe()
    for _ in range(_SEARCHED_FRAMES):
        frame = None if frame is None else frame.f_back
        if frame is None:
            return None
        if frame.f_code.co_varnames[:1] == ("self",) and is_searched(frame):
            return frame
    return None


def _holds(is_wanted: Callable[[Any], bool], candidate: Any) -> bool:
    """Return whether *candidate* is the wanted object.

    An error in asking it means that it is not.
    """
    try:
        return is_wanted(candidate)
    except any_error_but_signals():
        # An attribute of a user's own object, which has the name of a framework's.
        return False


def calling_module(owner: object) -> str:
    """Return the name of the module whose code, outside the methods of *owner*, calls one of them.

    Empty where no Python code calls.
    """
    own_frame = inspect.currentframe()
    frame = None if own_frame is None else own_frame.f_back
    try:
        while (
            frame is not None
            # Only in methods, as `_calling_method` says.
            and frame.f_code.co_varnames[:1] == ("self",)
            and frame.f_locals.get("self") is owner
        ):
            frame = frame.f_back
        if frame is None:
            return ""
        return str(frame.f_globals.get("__name__", ""))
    finally:
        # Else the frame, which would refer to itself, would keep its callers' variables alive.
        del own_frame, frame


@dataclass(frozen=True, slots=True)
class ReturnPlace:
    """Names the instruction of a caller to which a running method returns. It keeps no frame alive.

    A local variable of the method is freed there when the method returns, or in the method itself
    when that deletes it. It is freed elsewhere when an exception ends the method: the exception's
    traceback keeps the variable until the exception is freed.
    """

    method: CodeType
    caller: CodeType
    instruction: int

    def frees_in(self, frame: FrameType | None) -> bool:
        """Return whether a local variable that is freed in *frame* has been freed without an exception."""
        if frame is None:
            return False
        return frame.f_code is self.method or (
            frame.f_code is self.caller and frame.f_lasti == self.instruction
        )


def return_place_of(name: str) -> tuple[Any, ReturnPlace | None]:
    """Return ``self`` of the nearest calling method *name*, and where it returns to; ``None`` for both without one.

    Both are ``None`` too for a method without a calling frame.
    """
    method = _calling_method(lambda frame: frame.f_code.co_name == name)
    caller = None if method is None else method.f_back
    if method is None or caller is None:
        return None, None
    return method.f_locals.get("self"), ReturnPlace(
        method.f_code, caller.f_code, caller.f_lasti
    )
