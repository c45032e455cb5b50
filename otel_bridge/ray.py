"""End a Ray job's actors before its driver ends, so that their runs end as finished. For the driver's process.

Ray kills the actors that are left when a driver ends, without running anything in them: to the
bridge that looks like a crash. An actor that ends by ``ray.actor.exit_actor()`` or because its last
handle is gone runs its exit handlers and needs nothing of this.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import sys
import time
from collections.abc import Callable
from typing import Any

from otel_bridge.emit.console import notify
from otel_bridge.errors import any_error_but_signals

_TIMEOUT_S = 60.0
_SHUT_DOWN = "ray.shutdown() was called before the actors had ended: they were killed; call end_with_driver()'s result"


def end_with_driver(*actors: Any, timeout_s: float = _TIMEOUT_S) -> Callable[[], None]:
    """End *actors* regularly when this driver ends well, before Ray kills them.

    Call it in the driver, after ``ray.init()``. Each actor first ends the tasks it has, then runs
    its exit handlers, so that its run is finished and delivered. After an uncaught exception in the
    driver nothing is done: Ray kills the actors and their runs are killed. An actor that crashed,
    or that ``ray.kill`` ended, stays killed. A driver that ends by ``sys.exit()`` ends them, with
    any code.

    Args:
        actors: Handles of actors that log to runs of their own or share one.
        timeout_s: How long all of them together may take.

    Returns:
        A function that ends them now: call it before ``ray.shutdown()`` where the driver calls that
        itself.
    """

    def end() -> None:
        atexit.unregister(at_exit)
        _end(actors, timeout_s)

    def at_exit() -> None:
        if getattr(sys, "last_value", None) is None:
            end()

    # Handlers run in reverse order: this one before Ray's own, which kills the actors.
    atexit.register(at_exit)
    return end


def _end(actors: tuple[Any, ...], timeout_s: float) -> None:
    """End *actors*, all at once, within *timeout_s*; an actor that does not end in time is left to Ray.

    After ``ray.shutdown()``, also with another ``ray.init()`` after it, one line on stderr says
    that they were killed before.
    """
    # A driver of Ray has it, others do not.
    ray: Any = importlib.import_module("ray")
    deadline = time.monotonic() + timeout_s
    if not ray.is_initialized():
        notify(_SHUT_DOWN)
        return
    # All at once: each delivers what is left while it ends.
    ends = [_asked_to_end(actor) for actor in actors]
    if any(reference is None for reference in ends):
        notify(_SHUT_DOWN)
    for each in filter(None, ends):
        # An actor that ends leaves its call without a result; one that is gone already has ended as
        # it did.
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(each, timeout=max(deadline - time.monotonic(), 0.0))


def _asked_to_end(actor: Any) -> Any:
    """Return Ray's reference to the end of *actor*.

    ``None`` for an actor of a cluster that was shut down.
    """
    try:
        return actor.__ray_terminate__.remote()
    except any_error_but_signals():
        # Ray 2.60 raises `Exception` at the call, which must not keep the other actors from ending.
        return None
