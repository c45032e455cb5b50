"""Finds what ``otel-bridge run --capture`` already records of a trainer that also reports to the captured tracker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from otel_bridge.emit.run import Run

_CALLBACKS: Final = {"WandbCallback": "wandb", "TrackioCallback": "trackio", "TensorBoardCallback": "tensorboard"}
"""Class of a callback of transformers to the tracker that it reports to."""
_NAMES_THE_RUN: Final = frozenset({"wandb", "trackio"})
"""Trackers whose captured ``init()`` begins the run; event files of TensorBoard are recorded in any run."""


class CapturedReports:
    """Tells which records of a trainer reach the run through a captured tracker. For the thread that trains.

    Args:
        trainer: The trainer, with its ``callback_handler``; ``None`` if it is not known.
    """

    def __init__(self, trainer: Any) -> None:
        from otel_bridge.capture.hook import captured  # noqa: PLC0415  # only programs that record pay for it

        handler = getattr(trainer, "callback_handler", None)
        names = {base.__name__ for one in getattr(handler, "callbacks", ()) for base in type(one).__mro__}
        self._trackers = [tracker for name, tracker in _CALLBACKS.items() if name in names and tracker in captured()]

    @property
    def begins_the_run(self) -> bool:
        """Return whether a captured tracker is about to begin the run, by its own names."""
        return not _NAMES_THE_RUN.isdisjoint(self._trackers)

    def tracker_of(self, run: Run) -> str | None:
        """Return the tracker whose capture records the trainer's rows in *run*; ``None`` if none does."""
        from otel_bridge.capture.process_runs import owner_of  # noqa: PLC0415

        owner = owner_of(run)
        return next((one for one in self._trackers if one == owner or one not in _NAMES_THE_RUN), None)
