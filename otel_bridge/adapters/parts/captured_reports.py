"""Finds what ``otel-bridge run --capture`` already records of a framework that also reports to the captured tracker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from otel_bridge.adapters.parts.framework_run import notify_once, unrecorded_run

if TYPE_CHECKING:
    from otel_bridge.emit.run import Run

_NAMES_THE_RUN = frozenset({"wandb", "trackio"})
"""Trackers whose captured ``init()`` begins the run; event files of TensorBoard are recorded in any run."""


class CapturedReports:
    """Decides which records of a framework's logger reach the run through a captured tracker.

    Args:
        framework: Name of the framework, for the message.
        trackers: Names of the other trackers that the framework reports to; a text is the only one.
    """

    def __init__(self, framework: str, trackers: str | Iterable[str]) -> None:
        from otel_bridge.capture.hook import captured  # noqa: PLC0415  # only programs that record pay for it

        self._framework = framework
        names = [trackers] if isinstance(trackers, str) else trackers
        self._trackers = [name for name in names if name in captured()]

    @property
    def begins_the_run(self) -> bool:
        """Return whether a captured tracker is about to begin the run, by its own names.

        An adapter then waits for it, so that both are one run with the names that its user sees in
        the tracker.
        """
        return not _NAMES_THE_RUN.isdisjoint(self._trackers)

    def tracker_of(self, run: Run) -> str | None:
        """Return the tracker whose capture records the same rows in *run*, and print so once; ``None`` without one.

        ``None`` also for a run that the program itself, or the capture of another tracker, has
        begun: then the adapter alone records in it.
        """
        if run is unrecorded_run() or not self._trackers:
            return None
        from otel_bridge.emit.process_runs import runs  # noqa: PLC0415

        tracker = runs.capture_of(run)
        if tracker not in self._trackers:
            # Event files of TensorBoard are recorded in any run, also in one begun otherwise.
            tracker = next(
                (name for name in self._trackers if name not in _NAMES_THE_RUN), None
            )
        if tracker is not None:
            notify_once(
                f"metrics of {self._framework} are recorded once, as {tracker} gets them, in {run.project}/{run.name}:"
                f" {tracker} is captured, and {self._framework} reports to it too; remove {tracker} from its trackers,"
                f" and the adapter of {self._framework} names the run and records them"
            )
        return tracker

    def records_tables_and_config(self, run: Run) -> bool:
        """Return whether a captured tracker records tables, as rollouts, and the config in *run* too.

        Not TensorBoard, whose event files hold scalars. Prints as `tracker_of`.
        """
        return self.tracker_of(run) in _NAMES_THE_RUN


def trackers_of(reporters: Iterable[object], classes: Mapping[str, str]) -> list[str]:
    """Return the trackers that objects of a framework report to, each once; none for other objects.

    Args:
        reporters: Callbacks or loggers.
        classes: Name of a class of the framework to its tracker; subclasses report to it too.
    """
    names = {base.__name__ for reporter in reporters for base in type(reporter).__mro__}
    return [tracker for name, tracker in classes.items() if name in names]
