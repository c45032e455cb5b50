"""Finds the object whose method calls an adapter, where a framework does not pass it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

_SEARCHED_FRAMES: Final = 12


def calling_object(is_wanted: Callable[[Any], bool]) -> Any:
    """Return ``self`` of the nearest calling method for which *is_wanted* is true, ``None`` without one.

    The search leaves no frame alive, and so no local variable of a caller. Before Python 3.13 ``f_locals`` is a
    snapshot that stays in its frame. So it is not read in the adapter's own frame, which the snapshot would then
    contain, nor in a function without ``self``, such as the user's ``main()``, where a later ``del`` must free a model.

    Args:
        is_wanted: Returns whether an object is the wanted one.
    """
    own = inspect.currentframe()
    frame = None if own is None else own.f_back
    try:
        for _ in range(_SEARCHED_FRAMES):
            if frame is None:
                return None
            if frame.f_code.co_varnames[:1] == ("self",):
                found = frame.f_locals.get("self")
                if is_wanted(found):
                    return found
            frame = frame.f_back
        return None
    finally:
        del own, frame
