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


def run_class(package: Any) -> Any:
    """Return a subclass of ``wandb.Run`` whose runs only record.

    Args:
        package: The package ``wandb``.
    """

    def begin(
        self: Any,
        recording: WandbRecording,
        facts: RunFacts,
        settings: Any,
        config: Any,
    ) -> None:
        package.Run.__init__(self, settings=settings)
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

    body: dict[str, Any] = {
        "__init__": begin,
        "__exit__": _leave,
        **_recorded(package),
        **_callbacks(package),
    }
    body |= _shown_facts(package)
    for name, result in NEUTRAL.items():
        if hasattr(package.Run, name):
            body[name] = _neutral(name, result)
    for name in _ARTIFACTS:
        body[name] = _artifact_call(package, name)
    for name in _OF_ACTIVE_RUNS:
        if name in body:
            # W&B's own decorator, so that the program gets W&B's own `UsageError`.
            body[name] = package.sdk.wandb_run._raise_if_finished(
                _named(name, body[name])
            )
    return type("CapturedWandbRun", (package.Run,), body)


def _recorded(package: Any) -> dict[str, Any]:
    """Return the methods that record."""

    def log(
        self: Any,
        data: Any = None,
        step: Any = None,
        commit: Any = None,
        sync: Any = None,
    ) -> None:
        """Record a row, by W&B's rules for *step* and *commit*."""
        # Of older versions; wandb 0.31 has no such argument.
        del sync
        self.recording.log(data, step, commit)

    def finish(
        self: Any, exit_code: Any = None, *_arguments: Any, **_keywords: Any
    ) -> None:
        """End the run."""
        if self._is_finished:
            return
        self._is_finished = True
        self.recording.finish(exit_code)
        if package.run is self:
            # As W&B's own finish(): afterwards `wandb.log` raises that init() is missing.
            package.sdk.lib.module.unset_globals()

    def alert(
        self: Any,
        title: Any = "",
        text: Any = "",
        level: Any = None,
        wait_duration: Any = None,
    ) -> None:
        """Record an alert, at most one of a title in *wait_duration*.

        Its level is ``info`` unless *level* is given.
        """
        self.recording.alert(title, text, level, wait_duration)

    def note_metric(self: Any, record: Any) -> None:
        """Note the definition that ``define_metric()`` has checked."""
        define_metric(self.recording, record)

    def use_artifact(
        self: Any,
        artifact_or_name: Any,
        type: Any = None,  # noqa: A002  W&B's
        **_keywords: Any,
    ) -> Any:
        """Return the artifact, read by W&B's own public API.

        That the run used it is not recorded.
        """
        self.recording.not_captured("wandb.run.use_artifact")
        if isinstance(artifact_or_name, str):
            return package.Api().artifact(artifact_or_name, type=type)
        return artifact_or_name

    def reduce(self: Any) -> Any:
        """Let another process that unpickles the run join it."""
        return _join, (self.facts.project, self.facts.name, self.facts.id)

    return {
        "log": log, "alert": alert, "finish": finish, "join": finish, "_finish": finish,
        "_metric_callback": note_metric, "use_artifact": use_artifact, "__reduce__": reduce,
    }  # fmt: skip


def _callbacks(package: Any) -> dict[str, Any]:
    """Return what config and summary call, and the calls that answer for files and uploads."""

    def save(
        self: Any, glob_str: Any = None, *_arguments: Any, **_keywords: Any
    ) -> list[str]:
        """Return the files that are there; W&B returns its links to them.

        They are not stored, which is counted.
        """
        self.recording.not_captured("wandb.run.save")
        if glob_str is None:
            return []
        return sorted(glob.glob(os.fsdecode(glob_str)))

    def status(self: Any) -> Any:
        """Return that nothing waits to be sent."""
        self.recording.not_captured("wandb.run.status")
        return package.sdk.wandb_run.RunStatus()

    def record_config(
        self: Any,
        key: Any = None,
        val: Any = None,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Record a change of the config."""
        self.recording.config_callback(key, val, data)

    def record_summary(self: Any, changed: Mapping[str, Any]) -> None:
        """Record what the program sets in the summary."""
        self.recording.summary(changed)

    return {
        "save": save, "status": status, "_config_callback": record_config, "_summary_update_callback": record_summary,
    }  # fmt: skip


def define_metric(recording: WandbRecording, record: Any) -> None:
    """Note the definition that a ``MetricRecord`` of W&B holds."""
    summary = [field.name for field, chosen in record.summary.ListFields() if chosen]
    name = record.glob_name or record.name
    step_metric = record.step_metric or None
    recording.define_metric(
        name, step_metric, summary, overwrite=bool(record._control.overwrite)
    )


def _shown_facts(package: Any) -> dict[str, Any]:
    """Return the properties by which the program sees its run."""

    def folder(self: Any) -> str:
        return str(self.recording.folder())

    def url(self: Any) -> str | None:
        urls: Mapping[str, str] = self.recording.run.urls
        return urls.get("wandb") or next(iter(urls.values()), None)

    def sweep_url(self: Any) -> str | None:
        """Return the page of the trial's sweep, as W&B's settings name it."""
        settings = self._settings.model_copy(
            update={"entity": self.facts.entity, "project": self.facts.project}
        )
        return settings.sweep_url or None

    read: dict[str, Callable[[Any], Any]] = {
        "settings": lambda self: self._settings.model_copy(update={"run_name": self._shown["name"]}),
        "url": url, "dir": folder,
        "config": lambda self: self._config,
        "step": lambda self: self.recording.rows.step,
        "starting_step": lambda self: self._starting_step,
        "start_time": lambda self: self._start_time,
        "offline": lambda _self: False,
        "disabled": lambda _self: False,
        "project_url": lambda _self: None,
        "sweep_url": sweep_url,
        "sync_dir": folder,
    }  # fmt: skip
    facts = {
        name: property(_fact(name))
        for name in ("id", "project", "entity", "group", "job_type", "path", "resumed")
    }
    refuse = package.sdk.wandb_run._raise_if_finished
    settable = {name: _settable(name, refuse) for name in ("name", "notes", "tags")}
    return {name: property(get) for name, get in read.items()} | facts | settable


def _fact(name: str) -> Callable[[Any], Any]:
    return lambda self: getattr(self.facts, name)


def _settable(name: str, refuse: Callable[[Callable[..., Any]], Any]) -> property:
    """Return a property that the program may change.

    Trackers keep what it was begun with, but for a generated name.
    """

    def change(self: Any, value: Any) -> None:
        if not (name == "name" and rename(self.recording.run, value)):
            self.recording.not_captured(f"wandb.run.{name} =")
        self._shown[name] = tuple(value) if name == "tags" else value

    return property(lambda self: self._shown[name], refuse(_named(name, change)))


def _named(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return *method* under *name*, which W&B's error shows."""
    method.__name__ = name
    return method


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

    return call


def _neutral(name: str, result: object) -> Callable[..., object]:
    def neutral(self: Any, *_arguments: object, **_keywords: object) -> object:
        """Do nothing: the call has no counterpart, and is counted."""
        self.recording.not_captured(f"wandb.run.{name}")
        return result

    return neutral


def _leave(self: Any, kind: Any, error: Any, trace: Any) -> None:
    """Print an exception as W&B does, and end the run."""
    if kind is not None:
        traceback.print_exception(kind, error, trace)
    self.finish(exit_code=int(kind is not None))


def _join(project: str, name: str, run_id: str) -> Any:
    """Return the run in another process."""
    return import_module("wandb").init(project=project, name=name, id=run_id)
