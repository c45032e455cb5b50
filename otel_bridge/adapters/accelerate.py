"""Records what Hugging Face Accelerate logs, by a tracker that is given as an object or by the name ``otel_bridge``.

.. code-block:: python

    accelerator = Accelerator(log_with=OtelBridgeTracker("project", name="run"))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from otel_bridge.adapters.parts.calling_object import calling_object
from otel_bridge.adapters.parts.captured_reports import CapturedReports
from otel_bridge.adapters.parts.framework_import import framework_class
from otel_bridge.adapters.parts.framework_run import (
    FrameworkRun,
    RunNames,
    checked_arguments,
    guarded,
)
from otel_bridge.capture.hook import captured
from otel_bridge.emit.process_end import status_now

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_bridge.emit.run import Run

    class GeneralTracker:
        """Declares the members of ``accelerate.tracking.GeneralTracker`` that this adapter uses."""

        def __init__(self) -> None: ...

    def on_main_process(function: Callable[..., Any]) -> Callable[..., Any]:
        """Return *function* such that it runs in the main process only."""
        return function

else:
    GeneralTracker = framework_class(
        "accelerate.tracking:GeneralTracker", "accelerate>=0.34"
    )
    on_main_process = framework_class(
        "accelerate.tracking:on_main_process", "accelerate>=0.34"
    )


class OtelBridgeTracker(GeneralTracker):
    """Records what an ``Accelerator`` logs; the main process only, as Accelerate decides.

    Args:
        project: Project; for a tracker given by name, that of ``init_trackers()``.
        name: Name of the run.
        role: Role of this process.
        arguments: Further arguments of ``otel_bridge.init()``, e.g. ``group`` or ``tags``.

    Raises:
        ConfigError: ``otel_bridge.init()`` does not have an argument.
    """

    name = "otel_bridge"
    requires_logging_directory = False
    main_process_only = True

    def __init__(
        self,
        project: str | None = None,
        name: str | None = None,
        role: str | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__()
        # Accelerate builds an object before it knows its processes: nothing begins here.
        self._recording = FrameworkRun(
            "accelerate",
            RunNames(project, name, role, arguments=checked_arguments(arguments)),
        )

    @property
    def tracker(self) -> Run:
        """Return the run, begun if it is not; ``get_tracker("otel_bridge", unwrap=True)`` returns it too.

        One that records nothing where no run can begin.
        """
        return self._recording.begin()

    @on_main_process
    def start(self) -> None:
        """Begin the run, unless a captured tracker beside this one begins it.

        A run that cannot begin is printed, and nothing is recorded.
        """
        if not self._captured().begins_the_run:
            self._recording.begin()

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Record hyperparameters, unless the capture of another tracker records them.

        Where no run can begin nothing happens.
        """
        run = self._recording.begin()
        if not self._captured().records_tables_and_config(run):
            run.log_config(values)

    @on_main_process
    @guarded
    def log(
        self, values: dict[str, Any], step: int | None = None, **kwargs: Any
    ) -> None:
        """Record one row, or what the capture of another tracker does not record of it.

        Where no run can begin nothing happens; another failure is counted as ``adapter_failed``.

        Args:
            values: The row.
            step: Its step.
            kwargs: Arguments of `otel_bridge.Run.log`, from ``log_kwargs``.
        """
        run = self._recording.begin()
        tracker = self._captured().tracker_of(run)
        if tracker is None:
            run.log(values, step, **kwargs)
        elif tracker == "tensorboard" and (rest := _not_in_tensorboard(values)):
            run.log(rest, step, **kwargs)

    @on_main_process
    def finish(self) -> None:
        """End the run, as failed while an exception propagates: ``end_training()`` is often in a ``finally``.

        Nothing happens before the first record. It waits for delivery as `Run.finish` does.
        """
        self._recording.finish(status_now())

    def _captured(self) -> CapturedReports:
        """Return what is captured of the trackers that get the same call: none when the user's code calls this one.

        What the user's code gives this tracker alone no other one gets, so it is recorded.
        """
        if (
            not captured()
        ):  # the search of the calling frames would be a cost of each row
            return CapturedReports("Accelerate", ())
        accelerator = calling_object(
            lambda caller: any(
                tracker is self for tracker in getattr(caller, "trackers", ())
            )
        )
        return CapturedReports(
            "Accelerate",
            [tracker.name for tracker in getattr(accelerator, "trackers", ())],
        )


def _not_in_tensorboard(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers that Accelerate's ``TensorBoardTracker`` leaves out, such as those of NumPy.

    0-dimensional tensors are among what it writes (accelerate 1.15).
    """
    return {
        key: value
        for key, value in values.items()
        if not isinstance(value, (int, float, str, Mapping))
        and not (hasattr(value, "detach") and value.ndim == 0)
    }


def register() -> None:
    """Make ``log_with="otel_bridge"`` known to Accelerate.

    A second call changes nothing.

    Raises:
        MissingExtraError: Accelerate is older than 1.15, which has no registry; give `OtelBridgeTracker` as an object.
    """
    trackers: dict[str, Any] = framework_class(
        "accelerate.tracking:LOGGER_TYPE_TO_CLASS", "accelerate>=1.15"
    )
    if trackers.get(OtelBridgeTracker.name) is not OtelBridgeTracker:
        framework_class(
            "accelerate.tracking:register_tracker_class", "accelerate>=1.15"
        )(OtelBridgeTracker)
