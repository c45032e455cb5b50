"""Arguments of programs that also call other loggers -> arguments of our calls. Nothing here raises.

A framework calls all its loggers alike, with keywords of its own choice. An argument that a call does not know is
counted and never raises a TypeError in the training loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, Literal, TypeAlias, cast

from otel_bridge.errors import any_error

EndStatus: TypeAlias = Literal["finished", "failed", "killed"]
CountArgument: TypeAlias = Callable[[str, int, str], None]
"""Callable with a reason, a number and the name of the first argument that the reason is about."""

UNKNOWN: Final = "unknown_argument"
VALUES: Final = ("data", "metrics", "values", "logs", "payload", "log", "row", "scalars", "log_dict", "dictionary", "d")
"""Names of the mapping of values in verl, W&B, Trackio, accelerate, Lightning, Ray, TensorBoard."""
STEPS: Final = ("step", "global_step", "iteration", "steps", "current_step")
ROLLOUTS: Final = ("rollouts", "finished", "data", "samples", "trajectories", "episodes", "values")
CONFIGS: Final = ("config", "params", "hparams", "hyperparams", "values", "data")
REWARDS: Final = ("values", "rewards", "scores", "data")
_NO_MEANING: Final = frozenset({"sync", "synchronous", "flush", "quiet", "commit"})
"""Arguments of other loggers that have no effect here."""
_FINISHED: Final = frozenset({"finished", "success", "succeeded", "completed", "complete", "done", "ok"})
_KILLED: Final = frozenset({"killed", "aborted", "cancelled", "canceled", "interrupted"})
_EARLIEST_NS: Final = 100_000_000_000_000_000
"""1973: a smaller number is a time in another unit."""
_END_NS: Final = 1 << 63
_SHOWN_BITS: Final = 128
"""Python may refuse the digits of a much longer integer."""
DEFAULT_FLUSH_S: Final = 10.0
DEFAULT_FINISH_S: Final = 30.0


class ExtraArguments:
    """Holds arguments of one call that have no parameter.

    Args:
        positional: Arguments by position.
        named: Arguments by name.
        count: Callable that counts the remaining arguments.
    """

    def __init__(self, positional: tuple[object, ...], named: Mapping[str, object], count: CountArgument) -> None:
        self._positional, self._named, self._count = list(positional), dict(named), count

    def named(self, names: tuple[str, ...], given: object = None) -> object:
        """Return *given*, or, when *given* is ``None``, remove and return the first argument named in *names*."""
        if given is not None:
            return given
        found = next((name for name in names if name in self._named), None)
        return None if found is None else self._named.pop(found)

    def next(self, given: object = None) -> object:
        """Return *given*, or, when *given* is ``None``, remove and return the next argument by position."""
        return self._positional.pop(0) if given is None and self._positional else given

    def count_rest(self) -> None:
        """Count the arguments that were not used."""
        unknown = [name for name in self._named if name not in _NO_MEANING]
        unknown += [f"argument {number}" for number, _ in enumerate(self._positional, 1)]
        if unknown:
            self._count(UNKNOWN, len(unknown), unknown[0])


def row_arguments(
    values: object, step: object, positional: tuple[object, ...], named: Mapping[str, object], count: CountArgument
) -> tuple[object, object, bool, int]:
    """Return values and step of a ``log()`` call, whether it commits, and the row's own time in Unix ns, else 0.

    W&B's ``commit=False`` keeps the step.
    """
    extra = ExtraArguments(positional, named, count)
    values, step = extra.named(VALUES, values), extra.named(STEPS, step)
    commit = extra.named(("commit",), extra.next())
    extra.next()  # W&B's sync
    own_ns = _unix_ns(extra.named(("time_unix_ns",)), count)
    extra.count_rest()
    return values, step, commit is not False, own_ns


def _unix_ns(given: object, count: CountArgument) -> int:
    """Return a time in Unix ns; 0, counted, when *given* is none: also for seconds, milli- or microseconds."""
    if given is None:
        return 0
    try:
        number = int(cast("int", given))
    except any_error():  # a user's object
        number = 0
    if isinstance(given, (str, bytes, bool)) or not _EARLIEST_NS <= number < _END_NS:
        shown = isinstance(given, (float, str)) or (isinstance(given, int) and given.bit_length() < _SHOWN_BITS)
        count("bad_time", 1, repr(given)[:100] if shown else type(given).__name__)
        return 0
    return number


def status_of(status: object) -> EndStatus:
    """Return the end status from a tracker's word or an exit code; anything else means failed."""
    if status is None or status is True:
        return "finished"
    if isinstance(status, int):
        return "failed" if status else "finished"
    word = status.strip().lower() if isinstance(status, str) else ""
    return "finished" if word in _FINISHED else "killed" if word in _KILLED else "failed"


def seconds_of(value: object, default_s: float) -> float:
    """Return the longest wait of a call in seconds; *default_s* when *value* is not a number."""
    if value is None or isinstance(value, str | bytes):
        return default_s
    try:
        number = float(cast("float", value))
    except any_error():  # a user's object
        return default_s
    return default_s if math.isnan(number) else max(number, 0.0)


def role_of(role: object) -> str | None:
    """Return a role as text; ``None`` when *role* is not a role."""
    if role is None or type(role) is str:
        return role or None
    try:
        return str(role)[:256] or None
    except any_error():  # a user's object
        return None
