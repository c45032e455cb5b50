"""Capture of ``trackio``: its ``init()`` begins an otel-bridge run, and its traces become rollouts.

The real package stays the surface: ``trackio.init`` returns a ``trackio.Run`` that starts no thread and opens no store
and no Space. The package's own ``log``, ``finish`` and ``alert`` call that run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

from otel_bridge.capture.config import record_config
from otel_bridge.capture.counts import counts
from otel_bridge.capture.media import media_of
from otel_bridge.capture.process_runs import begin_run
from otel_bridge.capture.trackio_traces import rollout_of_trace
from otel_bridge.emit import api
from otel_bridge.emit.config.capture_env import refuse_twice
from otel_bridge.emit.config.child_env import launcher_alive
from otel_bridge.emit.config.exporters import choose
from otel_bridge.emit.encode.values import to_step
from otel_bridge.emit.rollouts.rollout import Rollout
from otel_bridge.emit.run import Run
from otel_bridge.settings import environment

_NOT_ALLOWED: Final = "allow_val_change"
_NEUTRAL_MODULE: Final = ("save", "freeze", "sync")
_NEUTRAL_RUN: Final = ("log_system", "log_artifact", "use_artifact", "link_artifact")
_CONTEXT_OFF: Final = ("current_server", "current_space_id", "current_server_write_token")


def install(module: ModuleType, mode: str) -> None:
    """Capture *module*, the package ``trackio``; a second call changes nothing.

    Args:
        module: The package, wholly loaded.
        mode: ``replace`` or ``tee``.
    """
    package: Any = module
    real_init: Callable[..., Any] = package.init
    if getattr(real_init, "otel_bridge_capture", False):
        return
    captured = _run_class(package)

    def init(project: str, name: str | None = None, group: str | None = None, *extra: Any, **others: Any) -> Any:
        """Begin a run of otel-bridge in place of Trackio's."""
        if mode == "tee":
            _refuse_twice()
            run = real_init(project, name, group, *extra, **others)
            _record_too(run, _begin(project, name or run.name, group, run.config))
            package.config = run.config
            return run
        _finish_other(package, project, name)
        asked = signature(real_init).bind_partial(project, name, group, *extra, **others).arguments
        config = _TrackioConfig(asked.get("config") or {})
        run = captured(_begin(project, name, group, config), group, config)
        _set_current(package, run)
        return run

    init.__dict__["otel_bridge_capture"] = True
    package.init = init
    if mode == "replace":
        for name in _NEUTRAL_MODULE:
            if hasattr(package, name):
                setattr(package, name, _neutral(f"trackio.{name}", ""))


def _begin(project: str, name: str | None, group: str | None, config: Mapping[str, Any]) -> Run:
    shown = {key: value for key, value in config.items() if not key.startswith("_")}  # Trackio's own entries
    return begin_run("trackio", project, name, group=group, config=shown or None)


def _refuse_twice() -> None:
    env = environment()
    choice = choose(None, env, Path.cwd(), launched=launcher_alive(env), elsewhere=True)
    refuse_twice(("trackio",), "tee", choice.names)


def _finish_other(package: Any, project: str, name: str | None) -> None:
    """Finish the current run if it is another one, as Trackio's ``init()`` does."""
    before = package.context_vars.current_run.get()
    if before is not None and (before.project, before.name) != (project, name):
        before.finish()


def _set_current(package: Any, run: Any) -> None:
    """Make *run* the package's current run; without a Space, so that frameworks do not deploy one."""
    variables = package.context_vars
    for name in _CONTEXT_OFF:
        if hasattr(variables, name):
            getattr(variables, name).set(None)
    variables.current_project.set(run.project)
    variables.current_run.set(run)
    package.config = run.config


def _neutral(call: str, result: object) -> Callable[..., object]:
    def neutral(*_arguments: object, **_named: object) -> object:
        """Do nothing: the call has no counterpart, and is counted."""
        counts.not_captured(call)
        run = api.current_run()
        if run is not None:
            run.count_drop("not_captured", key=call)
        return result

    return neutral


class _TrackioConfig(dict[str, Any]):
    """Records each change of a run's config, once the run has begun."""

    run: Run | None = None

    def __setitem__(self, key: str, value: Any) -> None:
        self.update({key: value})

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Set and record *key*, if it is not set."""
        if key not in self:
            self.update({key: default})
        return self[key]

    def update(self, *given: Any, **named: Any) -> None:
        """Set and record entries; ``allow_val_change``, as in W&B, is not an entry."""
        named.pop(_NOT_ALLOWED, None)
        new: dict[str, Any] = dict(*given, **named)
        super().update(new)
        if self.run is not None:
            counts.captured("trackio.config", len(new))
            record_config(self.run, new)

    def __ior__(self, given: Any) -> _TrackioConfig:  # type: ignore[override, misc]  # a dict's own has two forms
        self.update(given)
        return self


class TrackioRecording:
    """Records what a Trackio run is given: rows by Trackio's counting of steps, and traces as rollouts.

    Args:
        run: The run of otel-bridge.
    """

    def __init__(self, run: Run) -> None:
        counts.captured("trackio.init")
        self.run = run
        self.next_step = 0 if (last := run.last_step()) is None else last + 1

    def log(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Record a row and its traces; never raises. A trace that cannot be read is left out alone."""
        counts.captured("trackio.log")
        try:
            given = None if step is None else to_step(step, self.run.count_drop)
            at = self.next_step if given is None else given
            self.next_step = max(self.next_step, at + 1)
            row: dict[str, Any] = {}
            rollouts: list[Rollout] = []
            for key, value in metrics.items():
                traces = _traces(value)
                if not traces:
                    row[key] = self._value(value)
                for trace in traces:
                    self._take(trace, str(key), rollouts)
            if row:
                self.run.log(row, at)
            if rollouts:
                self.run.log_rollouts(rollouts, step=at)
        except Exception:  # noqa: BLE001  # objects of the user's
            self.run.count_drop("internal_error")

    def _value(self, value: Any) -> Any:
        """Return a medium in our form, and any other value as it is."""
        shown = media_of(value)
        if shown is not None:
            counts.captured(f"trackio.{_class_of(value)}")
            return shown
        if hasattr(value, "TYPE"):  # of a kind that is not known here
            counts.not_captured(str(value.TYPE))
        return value

    def _take(self, trace: Any, key: str, rollouts: list[Rollout]) -> None:
        try:
            rollouts.append(rollout_of_trace(trace, key))
            counts.captured("trackio.Trace: rollouts")
        except Exception:  # noqa: BLE001  # what the program put into the trace
            self.run.count_drop("rollout_unreadable", key=key)

    def alert(self, title: Any = None, text: Any = None, level: Any = "warn", *_given: Any, **_named: Any) -> None:
        """Record an alert."""
        counts.captured("trackio.alert")
        self.run.alert(title, text, level)


def _class_of(value: Any) -> str:
    one = cast("list[object]", value)[0] if isinstance(value, (list, tuple)) else value
    return type(one).__name__.removeprefix("Trackio")


def _traces(value: Any) -> list[Any]:
    """Return the traces of a value, which is a ``Trace`` or a list of them; else nothing."""
    items: Any = value if isinstance(value, list) else [value]  # pyright: ignore[reportUnknownVariableType]  # any list
    return items if items and all(getattr(item, "TYPE", None) == "trackio.trace" for item in items) else []


def _record_too(run: Any, recorded: Run) -> None:
    """Let Trackio's own *run* record what it is given in *recorded* as well."""
    recording = TrackioRecording(recorded)
    real_log, real_finish, real_alert = run.log, run.finish, run.alert

    def log(metrics: dict[str, Any], step: int | None = None) -> None:
        """Record a row in both."""
        recording.log(metrics, step)
        real_log(metrics, step)

    def alert(*given: Any, **named: Any) -> None:
        """Raise the alert in both."""
        recording.alert(*given, **named)
        real_alert(*given, **named)

    def finish() -> None:
        """Finish both."""
        recorded.finish()
        real_finish()

    run.log, run.finish, run.alert = log, finish, alert
    run.config = _TrackioConfig(run.config)
    run.config.run = recorded


def _run_class(package: Any) -> Any:
    """Return a subclass of ``trackio.Run`` whose runs only record."""

    def begin(self: Any, run: Run, group: str | None, config: _TrackioConfig) -> None:
        self.recording = TrackioRecording(run)
        self.project, self.name, self.id, self.group, self.config = run.project, run.name, run.id, group, config
        self.url = self._space_id = self._bucket_id = self._server_base_url = None
        self._is_local = True
        config.run = run

    def log(self: Any, metrics: dict[str, Any], step: int | None = None) -> None:
        self.recording.log(metrics, step)

    def alert(self: Any, *given: Any, **named: Any) -> None:
        self.recording.alert(*given, **named)

    def finish(self: Any) -> None:
        self.recording.run.finish()
        if package.context_vars.current_run.get() is self:
            package.context_vars.current_run.set(None)

    body: dict[str, Any] = {"__init__": begin, "log": log, "alert": alert, "finish": finish}
    for name in _NEUTRAL_RUN:
        if hasattr(package.Run, name):
            body[name] = _neutral(f"trackio.Run.{name}", None)
    return type("CapturedTrackioRun", (package.Run,), body)
