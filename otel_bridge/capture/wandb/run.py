"""The run object that a captured ``wandb.init()`` returns: a ``wandb.Run`` that only records.

W&B's own class keeps settings, config and summary, and checks arguments. A run without an
interface to a service process (``_interface``, in wandb 0.23 ``_backend``) sends nothing.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

from otel_bridge.capture.config import both
from otel_bridge.capture.wandb.arguments import rename
from otel_bridge.capture.wandb.recording import WandbRecording
from otel_bridge.values.mappings import without

NEUTRAL = {
    "display": False, "link_model": None, "log_code": None, "log_model": None, "mark_preempting": None,
    "pin_config_keys": None, "restore": None, "to_html": "", "unwatch": None, "watch": None, "write_logs": None,
}  # fmt: skip
"""Methods without a counterpart, and what they return."""
_ARTIFACTS = ("log_artifact", "upsert_artifact", "finish_artifact", "link_artifact")
"""Methods that return an artifact, for which the program may wait."""
NOT_RECORDED = (*NEUTRAL, *_ARTIFACTS, "save", "use_artifact")
"""Methods that record nothing."""
_OF_ACTIVE_RUNS = (
    *_ARTIFACTS, "log", "alert", "save", "use_artifact", "link_model", "log_code", "log_model",
    "mark_preempting", "pin_config_keys",
)  # fmt: skip
"""Methods that W&B refuses once the run has finished."""
_SETTABLE = ("name", "notes", "tags")
"""What the program may change; trackers keep what the run was begun with, but for a generated name."""
_LOGGED = "otel_bridge_logged"
_FIRST_VERSION = "v0"


class NoArtifact:
    """Replaces an artifact that is not logged: every attribute and call is itself."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            # Protocols such as copying look these names up, and must find none.
            raise AttributeError(name)
        return self

    def __call__(self, *_arguments: Any, **_keywords: Any) -> Any:
        """Return itself, so that calls can be chained."""
        return self


def behave_as_logged(artifact: Any) -> None:
    """Let an artifact of wandb behave as one that has been logged: there is nothing to wait for.

    Its own ``wait()`` raises for an artifact that was not logged (wandb 0.31), which would end a
    training. Its class is replaced, since ``version`` and ``aliases`` are properties of that.
    """
    kind: Any = type(artifact)  # pyright: ignore[reportUnknownVariableType]  # of another package
    if hasattr(kind, _LOGGED):
        return

    def wait(self: Any, timeout: Any = None) -> Any:
        """Return the artifact at once."""
        del timeout
        return self

    properties = {
        "version": property(lambda _self: _FIRST_VERSION),
        "aliases": property(lambda _self: []),
    }
    artifact.__class__ = type(
        kind.__name__, (kind,), {_LOGGED: True, "wait": wait, **properties}
    )


class RecordedRun:
    """Records what a ``wandb.Run`` is given.

    `run_class` adds the class of the installed package as the second base class. After the end of
    the run, the methods of `_OF_ACTIVE_RUNS` raise W&B's own ``UsageError``, as in W&B.

    Attributes:
        package: The package ``wandb``.
    """

    package: Any
    # Set by W&B's own constructor.
    _config: Any
    _is_finished: bool

    def __init__(
        self,
        recording: WandbRecording,
        settings: Any,
        config: dict[str, Any],
        sweep_config: dict[str, Any],
    ) -> None:
        self.recording = recording
        self.package.Run.__init__(self, settings, config, sweep_config)
        self._starting_step = recording.rows.step
        # With an id W&B's methods would attach to a service process, which does not run.
        self._attach_id = None
        record_changes(self, recording)

    def __reduce__(self) -> Any:
        """Let another process that unpickles the run join it, by the name that it was begun with."""
        run: Any = self
        return _join, (run.project, self.recording.run.name, run.id)

    def add_earlier_config(self, earlier: Mapping[str, Any]) -> None:
        """Add entries of an earlier start that this one does not give; they are recorded already.

        By W&B's own ``_update``, which calls no callback: they are not changes of this program.
        """
        self._config._update(without(earlier, self._config))

    # --- what the program records -----------------------------------------------------------------

    def log(
        self, data: Any = None, step: Any = None, commit: Any = None, sync: Any = None
    ) -> None:
        """Record a row, by W&B's rules for *step* and *commit*.

        What cannot be recorded is counted.
        """
        # Of older versions; wandb 0.31 has no such argument.
        del sync
        self.recording.log(data, step, commit)

    def alert(
        self,
        title: Any = "",
        text: Any = "",
        level: Any = None,
        wait_duration: Any = None,
    ) -> None:
        """Record an alert, at most one of a title in *wait_duration*.

        Its level is ``info`` unless *level* is given.
        """
        self.recording.alert(title, text, level, wait_duration)

    def _finish(self, exit_code: Any = None) -> None:
        """End the run, once. W&B's ``finish()`` and ``__exit__()`` call it, with 1 after an exception.

        It waits for delivery as `Run.finish` does; a second call returns at once.
        """
        if self._is_finished:
            return
        self._is_finished = True
        self.recording.finish(exit_code)
        if self.package.run is self:
            # As W&B's own finish(): afterwards `wandb.log` raises that init() is missing.
            self.package.sdk.lib.module.unset_globals()

    def _summary_get_current_summary_callback(self) -> dict[str, Any]:
        """Return what ``run.summary`` shows, which W&B asks its service process for."""
        return self.recording.last.values

    # --- calls about files and uploads ------------------------------------------------------------

    def use_artifact(
        self,
        artifact_or_name: Any,
        type: Any = None,  # noqa: A002  W&B's
        **_keywords: Any,
    ) -> Any:
        """Return the artifact, read by W&B's own public API.

        That the run used it is not recorded.

        Raises what W&B's API raises, e.g. without a network: the program needs the files.
        """
        self.recording.not_captured("wandb.run.use_artifact")
        if isinstance(artifact_or_name, str):
            return self.package.Api().artifact(artifact_or_name, type=type)
        return artifact_or_name

    def save(
        self, glob_str: Any = None, *_arguments: Any, **_keywords: Any
    ) -> list[str]:
        """Return the files that are there; W&B returns its links to them.

        They are not stored, which is counted.
        """
        self.recording.not_captured("wandb.run.save")
        if glob_str is None:
            return []
        return sorted(glob.glob(os.fsdecode(glob_str)))

    # --- what the program reads -------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Return W&B's counter."""
        return self.recording.rows.step

    @property
    def dir(self) -> str:
        """Return a folder for files of the program.

        Made at the first question, so that most programs leave none. Raises `OSError` where it
        cannot be made.
        """
        return self.recording.folder()

    sync_dir = dir  # noqa: A003  # the property above

    @property
    def url(self) -> str | None:
        """Return the run's page in W&B, else in another tracker.

        ``None`` until a bridge has opened the run.
        """
        urls = self.recording.run.urls
        return urls.get("wandb") or next(iter(urls.values()), None)

    project_url = None


def run_class(package: Any) -> Any:
    """Return a subclass of ``wandb.Run`` whose runs only record.

    Names that the installed version lacks are left out, so that programs ask for them as before.
    Raises `AttributeError` where it lacks a property of `_SETTABLE`, or W&B's own check of a finished
    run.

    Args:
        package: The package ``wandb``.
    """
    # W&B's own decorator, so that the program gets W&B's own `UsageError`.
    refuse = package.sdk.wandb_run._raise_if_finished
    body: dict[str, Any] = {"package": package}
    for name, result in NEUTRAL.items():
        if hasattr(package.Run, name):
            body[name] = _neutral(name, result)
    for name in _ARTIFACTS:
        body[name] = _artifact_call(package, name)
    for name in _OF_ACTIVE_RUNS:
        call = body.get(name) or getattr(RecordedRun, name, None)
        if call is not None:
            body[name] = refuse(call)
    for name in _SETTABLE:
        body[name] = _settable(name, getattr(package.Run, name))
    return type("CapturedWandbRun", (RecordedRun, package.Run), body)


def record_changes(run: Any, recording: WandbRecording) -> None:
    """Record what the program changes in config, summary and metrics of *run*, a run of W&B.

    W&B's own callbacks go first: of a finished run they raise its ``UsageError``.
    """
    run._metric_callback = both(
        run._metric_callback, partial(_define_metric, recording)
    )
    run._config._set_callback(both(run._config_callback, recording.config_callback))
    run.summary._set_update_callback(
        both(run._summary_update_callback, recording.summary_callback)
    )


def _define_metric(recording: WandbRecording, record: Any) -> None:
    """Note the definition that a ``MetricRecord`` of W&B holds, which ``define_metric()`` has checked."""
    summary = [field.name for field, chosen in record.summary.ListFields() if chosen]
    recording.define_metric(
        _key_of(record.glob_name or record.name),
        _key_of(record.step_metric) or None,
        summary,
        overwrite=bool(record._control.overwrite),
    )


def _key_of(name: str) -> str:
    """Return W&B's *name* of a metric as a key of rows.

    A dot in it is a level of nested values, unless a backslash stands before it (wandb-core 0.31).
    """
    return re.sub(r"(\\?)\.", lambda dot: "." if dot[1] else "/", name)


def _settable(name: str, real: property) -> property:
    """Return the property *real* of `_SETTABLE`, whose changes are recorded, or counted as not captured.

    Only a name in place of a generated one is recorded, see `rename`.
    """

    def change(self: Any, value: Any) -> None:
        # Of a finished run it raises W&B's `UsageError`.
        real.__set__(self, value)
        if not (name == "name" and rename(self.recording.run, value)):
            self.recording.not_captured(f"wandb.run.{name} =")

    return property(real.fget, change)


def _artifact_call(package: Any, name: str) -> Callable[..., Any]:
    """Return a method of `_ARTIFACTS`: it only counts itself, and returns what the program may wait for."""

    def call(
        self: Any, artifact_or_path: Any = None, *_arguments: Any, **_keywords: Any
    ) -> Any:
        """Do nothing: the call has no counterpart, and is counted.

        The program may wait for its artifact.
        """
        self.recording.not_captured(f"wandb.run.{name}")
        if isinstance(artifact_or_path, package.Artifact):
            behave_as_logged(artifact_or_path)
        return NoArtifact()

    call.__name__ = name
    return call


def _neutral(name: str, result: object) -> Callable[..., object]:
    """Return a method of `NEUTRAL`: it only counts itself as ``not_captured``, and returns *result*."""

    def neutral(self: Any, *_arguments: object, **_keywords: object) -> object:
        """Do nothing: the call has no counterpart, and is counted."""
        self.recording.not_captured(f"wandb.run.{name}")
        return result

    neutral.__name__ = name
    return neutral


def _join(project: str, name: str, run_id: str) -> Any:
    """Return the run in another process.

    W&B's own unpickling would attach to a service process, which does not run. Raises as a captured
    ``wandb.init()``. In a process without the capture it begins a run of W&B itself.
    """
    return import_module("wandb").init(project=project, name=name, id=run_id)
