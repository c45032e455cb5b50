"""The run object that a captured ``wandb.init()`` returns: a ``wandb.Run`` that only records."""

from __future__ import annotations

import glob
import os
import time
import traceback
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from otel_bridge.capture.wandb.arguments import RunFacts, rename
from otel_bridge.capture.wandb.recording import WandbRecording

NEUTRAL = {
    "display": False, "link_model": None, "log_code": None, "log_model": None, "mark_preempting": None,
    "pin_config_keys": None, "restore": None, "to_html": "", "unwatch": None, "watch": None, "write_logs": None,
}  # fmt: skip
"""Methods without a counterpart, and what they return."""
_ARTIFACTS = ("log_artifact", "upsert_artifact", "finish_artifact", "link_artifact")
"""Methods that return an artifact, for which the program may wait."""
NOT_RECORDED = (*NEUTRAL, *_ARTIFACTS, "save", "status", "use_artifact")
"""Methods that record nothing."""
_OF_ACTIVE_RUNS = (
    *_ARTIFACTS, "log", "alert", "save", "status", "use_artifact", "link_model", "log_code", "log_model",
    "mark_preempting", "pin_config_keys", "_config_callback", "_summary_update_callback",
)  # fmt: skip
"""Methods that W&B refuses once the run has finished."""
_FACTS = ("id", "project", "entity", "group", "job_type", "path", "resumed")
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
    """Let an artifact of wandb behave as one that has been logged: there is nothing to wait for."""
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

    `run_class` adds the class of the installed package as the second base class.

    Attributes:
        package: The package ``wandb``.
    """

    package: Any
    _settings: Any

    def __init__(
        self, recording: WandbRecording, facts: RunFacts, settings: Any, config: Any
    ) -> None:
        self.package.Run.__init__(self, settings=settings)
        self.recording = recording
        self.facts = facts
        self.summary = recording.last
        self._config = config
        self._start_time = time.time()
        self._starting_step = recording.rows.step
        # Methods of `wandb.Run` ask for these of a service process, which does not run here.
        self._interface = None
        self._backend = None
        self._attach_id = None
        self._is_finished = False
        self._is_attached = False
        self._shown = {"name": facts.name, "notes": facts.notes, "tags": facts.tags}
        config._set_callback(self._config_callback)
        recording.last.record_by(self._summary_update_callback)

    def __reduce__(self) -> Any:
        """Let another process that unpickles the run join it."""
        return _join, (self.facts.project, self.facts.name, self.facts.id)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Print an exception as W&B does, and end the run."""
        if kind is not None:
            traceback.print_exception(kind, error, trace)
        self.finish(exit_code=int(kind is not None))

    # --- what the program records -----------------------------------------------------------------

    def log(
        self, data: Any = None, step: Any = None, commit: Any = None, sync: Any = None
    ) -> None:
        """Record a row, by W&B's rules for *step* and *commit*."""
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

    def finish(self, exit_code: Any = None, *_arguments: Any, **_keywords: Any) -> None:
        """End the run."""
        if self._is_finished:
            return
        self._is_finished = True
        self.recording.finish(exit_code)
        if self.package.run is self:
            # As W&B's own finish(): afterwards `wandb.log` raises that init() is missing.
            self.package.sdk.lib.module.unset_globals()

    join = finish
    _finish = finish

    def _metric_callback(self, record: Any) -> None:
        """Note the definition that ``define_metric()`` has checked."""
        define_metric(self.recording, record)

    def _config_callback(
        self, key: Any = None, val: Any = None, data: Mapping[str, Any] | None = None
    ) -> None:
        """Record a change of the config."""
        self.recording.config_callback(key, val, data)

    def _summary_update_callback(self, changed: Mapping[str, Any]) -> None:
        """Record what the program sets in the summary."""
        self.recording.summary(changed)

    # --- calls about files and uploads ------------------------------------------------------------

    def use_artifact(
        self,
        artifact_or_name: Any,
        type: Any = None,  # noqa: A002  W&B's
        **_keywords: Any,
    ) -> Any:
        """Return the artifact, read by W&B's own public API.

        That the run used it is not recorded.
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

    def status(self) -> Any:
        """Return that nothing waits to be sent."""
        self.recording.not_captured("wandb.run.status")
        return self.package.sdk.wandb_run.RunStatus()

    # --- what the program reads -------------------------------------------------------------------

    @property
    def settings(self) -> Any:
        """Return W&B's settings of this run."""
        return self._settings.model_copy(update={"run_name": self._shown["name"]})

    @property
    def config(self) -> Any:
        """Return the ``wandb.Config``."""
        return self._config

    @property
    def step(self) -> int:
        """Return W&B's counter."""
        return self.recording.rows.step

    @property
    def starting_step(self) -> int:
        """Return the counter at the begin."""
        return self._starting_step

    @property
    def start_time(self) -> float:
        """Return the begin, in Unix seconds."""
        return self._start_time

    @property
    def dir(self) -> str:
        """Return a folder for files of the program."""
        return self.recording.folder()

    sync_dir = dir  # noqa: A003  # the property above

    @property
    def url(self) -> str | None:
        """Return the run's page in W&B, else in another tracker."""
        urls = self.recording.run.urls
        return urls.get("wandb") or next(iter(urls.values()), None)

    @property
    def sweep_url(self) -> str | None:
        """Return the page of the trial's sweep, as W&B's settings name it."""
        facts = self.facts
        update = {"entity": facts.entity, "project": facts.project}
        return self._settings.model_copy(update=update).sweep_url or None

    offline = False
    disabled = False
    project_url = None


def run_class(package: Any) -> Any:
    """Return a subclass of ``wandb.Run`` whose runs only record.

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
    for name in _FACTS:
        body[name] = property(_fact(name))
    for name in _SETTABLE:
        body[name] = _settable(name, refuse)
    return type("CapturedWandbRun", (RecordedRun, package.Run), body)


def define_metric(recording: WandbRecording, record: Any) -> None:
    """Note the definition that a ``MetricRecord`` of W&B holds."""
    summary = [field.name for field, chosen in record.summary.ListFields() if chosen]
    name = record.glob_name or record.name
    step_metric = record.step_metric or None
    recording.define_metric(
        name, step_metric, summary, overwrite=bool(record._control.overwrite)
    )


def _fact(name: str) -> Callable[[Any], Any]:
    return lambda self: getattr(self.facts, name)


def _settable(name: str, refuse: Callable[[Callable[..., Any]], Any]) -> property:
    """Return a property of `_SETTABLE`."""

    def change(self: Any, value: Any) -> None:
        if not (name == "name" and rename(self.recording.run, value)):
            self.recording.not_captured(f"wandb.run.{name} =")
        self._shown[name] = tuple(value) if name == "tags" else value

    # W&B's error shows it.
    change.__name__ = name
    return property(lambda self: self._shown[name], refuse(change))


def _artifact_call(package: Any, name: str) -> Callable[..., Any]:
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
    def neutral(self: Any, *_arguments: object, **_keywords: object) -> object:
        """Do nothing: the call has no counterpart, and is counted."""
        self.recording.not_captured(f"wandb.run.{name}")
        return result

    neutral.__name__ = name
    return neutral


def _join(project: str, name: str, run_id: str) -> Any:
    """Return the run in another process."""
    return import_module("wandb").init(project=project, name=name, id=run_id)
