"""Records what ``lightning``, ``pytorch_lightning`` and Fabric log, by a logger and their entry points.

.. code-block:: python

    trainer = Trainer(logger=OtelBridgeLogger("project", "run"))

Every Lightning program loads this module through the entry points, so it imports almost nothing
itself. The entry points add the logger when ``OTEL_BRIDGE_LIGHTNING=1``.
"""

from __future__ import annotations

import functools
import os
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from otel_bridge.errors import MissingExtraError, OtelBridgeError, any_error_but_signals
from otel_bridge.settings import LIGHTNING

if TYPE_CHECKING:
    from otel_bridge.adapters.parts.captured_reports import CapturedReports
    from otel_bridge.adapters.parts.framework_run import FrameworkRun
    from otel_bridge.emit.run import Run

_PACKAGES = (
    "lightning.pytorch",
    "pytorch_lightning",
    "lightning.fabric",
    "lightning_fabric",
)
"""Packages with a base class ``Logger`` in their module ``loggers``."""
_ROOTS = frozenset({name.partition(".")[0] for name in _PACKAGES})
_TRACKERS = {"WandbLogger": "wandb", "TensorBoardLogger": "tensorboard"}
"""Class of a logger of Lightning to the tracker that it reports to."""


class LightningLogger:
    """Records what Lightning's loops log, on rank 0. `OtelBridgeLogger` adds the base class of the installed package.

    Args:
        project: Project; default: as in ``otel_bridge.init()``.
        name: Name of the run; default: as in ``otel_bridge.init()``.
        role: Role of this process.
        save_dir: Folder below which Lightning saves checkpoints; default: the trainer's ``default_root_dir``.
        attached: Whether an entry point adds the logger: then checkpoints are saved where they are without it.
        arguments: Further arguments of ``otel_bridge.init()``, e.g. ``group`` or ``tags``.

    Raises:
        ConfigError: ``otel_bridge.init()`` does not have an argument.
    """

    def __init__(
        self,
        project: str | None = None,
        name: str | None = None,
        role: str | None = None,
        *,
        save_dir: str | None = None,
        attached: bool = False,
        **arguments: Any,
    ) -> None:
        from otel_bridge.adapters.parts.framework_run import (  # noqa: PLC0415
            FrameworkRun,
            RunNames,
            checked_arguments,
        )

        super().__init__()
        self._save_dir = save_dir
        self._attached = attached
        names = RunNames(project, name, role, arguments=checked_arguments(arguments))
        self._recording: FrameworkRun = FrameworkRun(
            "Lightning", names, is_rank_zero=_is_rank_zero
        )

    @property
    def name(self) -> str:
        """Return the project, which Lightning puts into the path of checkpoints."""
        if self._attached:
            return ""
        return self._path_part("project")

    @property
    def version(self) -> str:
        """Return the run's name, which Lightning puts into the path of checkpoints."""
        if self._attached:
            return ""
        return self._path_part("name")

    @property
    def save_dir(self) -> str:
        """Return the folder below which Lightning saves checkpoints, by default the calling trainer's own folder.

        Outside of a trainer, or too many frames below it, it is the working folder.
        """
        if self._save_dir is not None:
            return self._save_dir
        from otel_bridge.adapters.parts.calling_object import calling_object  # noqa: PLC0415

        # Lightning does not give a logger its trainer, and LightningCLI needs a folder.
        trainer = calling_object(
            lambda caller: (
                hasattr(caller, "default_root_dir") and hasattr(caller, "loggers")
            )
        )
        if trainer is None:
            return os.getcwd()
        return str(trainer.default_root_dir)

    @property
    def experiment(self) -> Run:
        """Return the run; on ranks above 0, a run that records nothing."""
        return self._begin()[0]

    # Lightning 2.6 calls with keywords, so that parameters have its names.
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Record one row, unless the capture of another logger records it.

        Nothing is recorded on ranks above 0, or where no run can begin, which is printed once.
        Your own call of this logger alone is always recorded: no other logger gets it.
        """
        run, captured = self._begin()
        if captured.tracker_of(run) is None or not self._is_called_by_lightning():
            run.log(metrics, step)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002  # Lightning's signature
        """Record hyperparameters: a mapping or a namespace. Further arguments, meant for other loggers, are ignored."""
        if not params:
            return
        run, captured = self._begin()
        if not (
            captured.records_tables_and_config(run) and self._is_called_by_lightning()
        ):
            run.log_config(params)

    def log_graph(self, model: Any, input_array: Any = None) -> None:  # noqa: ARG002  # Lightning's signature
        """Make phases of what the profiler of the calling trainer measures; the graph is not recorded.

        Lightning calls this at the beginning of each ``fit``, ``validate`` and ``test``, also where
        your own call has begun the run before. Nothing happens on ranks above 0.
        """
        from otel_bridge.adapters.parts.timers import time_lightning  # noqa: PLC0415

        if self._recording.is_rank_zero():
            time_lightning(self._trainer())

    def save(self) -> None:
        """Do nothing: a row is appended when it is logged."""

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Do nothing: checkpoints are not recorded."""

    def finalize(self, status: str) -> None:
        """End the run only after a failure: Lightning calls this after each ``fit``, ``validate`` and ``test``.

        The end of the process ends it otherwise, since ``validate()`` may follow ``fit()``. It waits
        for delivery: 2 s after a success, else as `Run.finish` does.
        """
        if status in {"failed", "aborted"}:
            self._recording.finish("failed")
        else:
            self._recording.flush()

    def _begin(self) -> tuple[Run, CapturedReports]:
        """Return the run, and which loggers beside this one are captured; that of W&B begins the run, by its names.

        Loggers of this kind with other names have runs of their own, which go on together.

        On ranks above 0 the run records nothing. W&B's logger begins its run with the first look at
        ``experiment``; an error in that is counted, and W&B's logger raises it itself later.
        """
        from otel_bridge.adapters.parts.captured_reports import (  # noqa: PLC0415
            CapturedReports,
            trackers_of,
        )
        from otel_bridge.adapters.parts.framework_run import guarded  # noqa: PLC0415
        from otel_bridge.capture.hook import captured  # noqa: PLC0415

        if not self._recording.is_rank_zero():
            return self._recording.begin(), CapturedReports("Lightning", ())
        # The search of the calling frames would be a cost of each row.
        beside = (
            self._loggers_beside() if captured() or self._recording.run is None else []
        )
        reports = CapturedReports("Lightning", trackers_of(beside, _TRACKERS))
        for logger in beside if reports.begins_the_run else ():
            if trackers_of([logger], _TRACKERS) == ["wandb"]:
                # As the logger's next call does.
                guarded(getattr)(logger, "experiment", None)
        # Of this class: they record into this run too.
        recordings = [
            logger._recording
            for logger in beside
            if isinstance(logger, LightningLogger)
        ]
        return self._recording.begin(beside=recordings), reports

    def _loggers_beside(self) -> list[Any]:
        """Return all loggers of the calling trainer or Fabric; none outside of them."""
        return _loggers_of(self._trainer())

    def _trainer(self) -> Any:
        """Return the calling trainer or Fabric that has this logger; ``None`` outside of them."""
        from otel_bridge.adapters.parts.calling_object import calling_object  # noqa: PLC0415

        caller = calling_object(
            lambda owner: any(logger is self for logger in _loggers_of(owner))
        )
        return getattr(caller, "trainer", caller)

    def _is_called_by_lightning(self) -> bool:
        """Return whether Lightning itself calls, and so gives every logger the same.

        Else the user's code does.
        """
        from otel_bridge.adapters.parts.calling_object import calling_module  # noqa: PLC0415

        return calling_module(self).partition(".")[0] in _ROOTS

    def _path_part(self, attribute: str) -> str:
        """Return a name of the run as a part of a path; ``otel_bridge`` where it has none."""
        # Lightning broadcasts the path of rank 0, so that only rank 0 needs the run.
        holder = (
            self.experiment if self._recording.is_rank_zero() else self._recording.names
        )
        name: object = getattr(holder, attribute)
        return str(name or "otel_bridge").replace("/", "_")


class LightningAttachment:
    """Adds a logger when a trainer, or Fabric, is set up."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002  # Lightning's signature
        """Add a logger to *trainer*, if it has none of this kind and Lightning does not turn its loggers off."""
        if not (
            getattr(trainer, "fast_dev_run", False)
            or getattr(trainer, "barebones", False)
        ):
            _attach(trainer.loggers, trainer.default_root_dir)

    def on_after_setup(self, fabric: Any, module: Any) -> None:  # noqa: ARG002  # Fabric's signature
        """Add a logger to *fabric*, if it has none of this kind."""
        _attach(fabric.loggers, None)


def lightning_callbacks() -> list[Any]:
    """Return the callbacks that ``lightning.pytorch`` adds to each trainer."""
    return _callbacks("lightning.pytorch")


def pytorch_lightning_callbacks() -> list[Any]:
    """Return the callbacks that ``pytorch_lightning`` adds to each trainer."""
    return _callbacks("pytorch_lightning")


def fabric_callbacks() -> list[Any]:
    """Return the callbacks that Fabric adds."""
    return _callbacks(None)


def _callbacks(package: str | None) -> list[Any]:
    """Return no callback unless ``OTEL_BRIDGE_LIGHTNING`` is set; never raise into ``Trainer()``.

    An error, such as a wrong value of the variable or a version of Lightning without ``Callback``,
    is printed.
    """
    try:
        if not LIGHTNING.read():
            return []
        if package is None:
            return [LightningAttachment()]
        base: Any = sys.modules[package].Callback  # pyright: ignore[reportUnknownMemberType]
        return [type("OtelBridgeCallback", (LightningAttachment, base), {})()]
    except (OtelBridgeError, AttributeError, KeyError) as exc:
        from otel_bridge.emit.console import notify  # noqa: PLC0415

        notify(f"Lightning continues without otel-bridge: {exc}", always=True)
        return []


def _attach(loggers: list[Any], save_dir: str | None) -> None:
    """Add a logger, unless there is one of this kind.

    A trainer has its callbacks set up for each phase, and may have a logger of the user's. The
    package of the logger's base class is loaded: its trainer calls.
    """
    if not any(isinstance(logger, LightningLogger) for logger in loggers):
        loggers.append(_logger_class()(save_dir=save_dir, attached=True))


def __getattr__(name: str) -> Any:
    # Made when it is asked for: its base class needs Lightning, which the entry points do not.
    if name != "OtelBridgeLogger":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _logger_class()


@functools.cache
def _logger_class() -> Any:
    """Return the class of loggers, made once from the base classes of all loaded packages.

    Of packages that are not loaded the first that is installed counts. A package that is loaded
    later does not accept the class, so import it before the adapter.

    Raises:
        MissingExtraError: No package of Lightning is installed.
    """
    from importlib import import_module  # noqa: PLC0415

    loaded = [name for name in _PACKAGES if name in sys.modules]
    if not loaded:
        loaded = [
            name for name in _PACKAGES if find_spec(name.partition(".")[0]) is not None
        ][:1]
    if not loaded:
        raise MissingExtraError(
            "Lightning is not installed; this adapter needs lightning>=2.1; run: pip install 'lightning>=2.1'"
        )
    bases: set[type] = {import_module(f"{name}.loggers").Logger for name in loaded}
    # A class before its own subclass would have no method resolution order.
    ordered_bases = sorted(bases, key=lambda base: len(base.__mro__), reverse=True)
    body = {"__module__": __name__, "__doc__": LightningLogger.__doc__}
    return type("OtelBridgeLogger", (LightningLogger, *ordered_bases), body)


def _loggers_of(owner: Any) -> list[Any]:
    """Return the loggers of a trainer or Fabric, or of the trainer of a loop or module; none of any other object."""
    try:
        return list(getattr(owner, "trainer", owner).loggers)
    except any_error_but_signals():
        # A module without a trainer raises; any other object has no loggers.
        return []


def _is_rank_zero() -> bool:
    """Return whether this process is rank 0, as Lightning sees it.

    Rank 0 where Lightning has not loaded that module yet: then it has no ranks.
    """
    module = sys.modules.get("lightning_utilities.core.rank_zero")
    only: Any = getattr(module, "rank_zero_only", None)
    return not getattr(only, "rank", 0)
