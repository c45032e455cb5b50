"""Capture of ``wandb``: its ``init()`` begins an otel-bridge run, and ``log()`` becomes rows and rollouts.

The real package stays the surface: ``wandb.init`` returns a ``wandb.Run`` that starts no service process, makes no
folder and reaches no network. ``wandb.Api`` stays as it is. Runs that the program disables are W&B's own, and are not
recorded. A run of a sweep goes on in W&B, which needs its results, and is copied.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Mapping
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

from otel_bridge.capture import hook
from otel_bridge.capture.wandb_recording import WandbRecording
from otel_bridge.capture.wandb_run import RunFacts, run_class
from otel_bridge.capture.wandb_tee import copy_too
from otel_bridge.emit import api
from otel_bridge.emit.config.capture_env import refuse_twice
from otel_bridge.emit.config.child_env import launcher_alive
from otel_bridge.emit.config.exporters import choose
from otel_bridge.emit.run import Run
from otel_bridge.errors import ConfigError
from otel_bridge.journal.report import read_report
from otel_bridge.records import axis_of, run_id_of
from otel_bridge.settings import RUN_ID, environment

_MARK: Final = "otel_bridge_capture"
_OF_SETTINGS: Final = {
    "project": "project", "entity": "entity", "name": "run_name", "id": "run_id", "group": "run_group",
    "job_type": "run_job_type", "notes": "run_notes", "tags": "run_tags", "mode": "mode", "reinit": "reinit",
    "resume": "resume", "sync_tensorboard": "sync_tensorboard",
}  # fmt: skip
"""Argument of ``wandb.init()`` to the field of ``wandb.Settings`` that it overrides."""
_OF_ENVIRONMENT: Final = {
    "id": "WANDB_RUN_ID", "group": "WANDB_RUN_GROUP", "job_type": "WANDB_JOB_TYPE", "entity": "WANDB_ENTITY",
    "resume": "WANDB_RESUME",
}  # fmt: skip
_NOT_FOR_CONFIG: Final = ("resume", "resume_from", "fork_from", "sync_tensorboard", "tensorboard", "monitor_gym", "dir")
"""Arguments that act on W&B's own run only."""
_NEUTRAL_KEY: Final = "otel-bridge"
_VALID_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MAX_NAME: Final = 256


def install(module: ModuleType, mode: str) -> None:
    """Capture *module*, the package ``wandb``; a second call changes nothing.

    Args:
        module: The package, wholly loaded.
        mode: ``replace`` or ``tee``.
    """
    package: Any = module
    if not getattr(package.init, _MARK, False):
        _Capture(package, mode).install()


class _Capture:
    """Capture of one copy of the package."""

    def __init__(self, package: Any, mode: str) -> None:
        self._package, self._mode = package, mode
        self._real_init: Callable[..., Any] = package.init
        self._real_api: Any = package.api
        self._key: str | None = None
        self._class: Any = run_class(package)

    def install(self) -> None:
        """Replace the functions of the package that begin a run or reach a server."""
        package = self._package
        self._replace("init", self.init)
        if self._mode == "replace":
            self._replace("login", self.login)
            self._replace("setup", self.setup)
            self._replace("teardown", self.teardown)
            package.api = _NeutralApi(self._real_api, lambda: self._key)

    def _replace(self, name: str, call: Callable[..., Any]) -> None:
        real = getattr(self._package, name)

        @functools.wraps(real)
        def replaced(*given: Any, **named: Any) -> Any:
            return call(*given, **named)

        replaced.__dict__[_MARK] = True
        for holder in (self._package, self._package.sdk):
            if getattr(holder, name, None) is real:
                setattr(holder, name, replaced)

    # --- what the program calls ---------------------------------------------------------------------------------------

    def init(self, *given: Any, **named: Any) -> Any:
        """Begin a run of otel-bridge in place of W&B's, or beside it."""
        arguments = dict(signature(self._real_init).bind_partial(*given, **named).arguments)
        asked = _Asked(arguments)
        if self._disabled(asked):
            return self._real_init(*given, **named)
        if asked["sync_tensorboard"] or arguments.get("tensorboard"):
            _capture_tensorboard()
        if self._mode == "tee" or os.environ.get("WANDB_SWEEP_ID"):
            _refuse_twice()
            before = self._package.run
            run = self._real_init(*given, **named)
            if run is not before:
                copy_too(self._package, run, begin(asked, name=run.name, id_=run.id, project=run.project))
            return run
        current = self._current(asked)
        return current if current is not None else self._begin(asked, arguments)

    def login(self, key: Any = None, *_given: Any, **_named: Any) -> bool:
        """Accept any key; nothing is checked or stored."""
        self._key = key if isinstance(key, str) and key else self._key
        return True

    def setup(self, settings: Any = None) -> Any:
        """Load W&B's settings as its own call does, but start no service process."""
        return self._package.sdk.wandb_setup._setup(settings=settings, start_service=False)

    def teardown(self, exit_code: Any = None) -> None:
        """End the run."""
        if self._package.run is not None:
            self._package.run.finish(exit_code=exit_code)

    # --- a run --------------------------------------------------------------------------------------------------------

    def _disabled(self, asked: _Asked) -> bool:
        mode = asked["mode"]
        if mode is None:
            mode = self._package.sdk.wandb_setup.singleton().settings.mode
        return bool(mode == "disabled")

    def _current(self, asked: _Asked) -> Any:
        """Return the run that goes on, by W&B's rules for *reinit*; ``None``: a new one begins."""
        current = self._package.run
        if current is None or not isinstance(current, self._class):
            return None
        reinit = asked["reinit"]
        ends = reinit in (True, "finish_previous") or (reinit in (None, "default") and hasattr(sys, "ps1"))
        if current.recording.run.recorder is not None and current.recording.run.recorder.forked:
            facts = current.facts
            named = ((asked["name"], facts.name), (asked["id"], facts.id), (asked["project"], facts.project))
            ends = any(given not in (None, known) for given, known in named)
        if ends or reinit == "create_new":
            current.finish()
            return None
        return current

    def _begin(self, asked: _Asked, arguments: dict[str, Any]) -> Any:
        config, settings = self._parsed(arguments)
        run = begin(asked)
        resumed = bool(asked["resume"]) and asked["resume"] != "never"
        recording = WandbRecording(run, _resumed_step(run) if resumed else None)
        facts = _facts(run, asked, resumed=resumed)
        captured = self._class(recording, facts, settings, config)
        self._set_global(captured)
        recording.config(dict(config.items()))
        return captured

    def _parsed(self, arguments: dict[str, Any]) -> tuple[Any, Any]:
        """Return config and settings as W&B reads them: by its own ``init()`` of a disabled run."""
        kept = {name: value for name, value in arguments.items() if name not in _NOT_FOR_CONFIG}
        settings = kept.get("settings")
        if settings is not None:
            kept["settings"] = {**settings} if isinstance(settings, dict) else settings.model_copy()
        disabled = self._real_init(**{**kept, "mode": "disabled"})
        config = self._package.sdk.wandb_config.Config()
        config.update(dict(disabled.config.items()), allow_val_change=True)
        return config, disabled.settings

    def _set_global(self, run: Any) -> None:
        self._package.sdk.lib.module.set_global(
            run=run, config=run.config, log=run.log, summary=run.summary, save=run.save, alert=run.alert,
            use_artifact=run.use_artifact, log_artifact=run.log_artifact, define_metric=run.define_metric,
            watch=run.watch, unwatch=run.unwatch, mark_preempting=run.mark_preempting, log_model=run.log_model,
            use_model=run.use_model, link_model=run.link_model,
        )  # fmt: skip


class _Asked:
    """Arguments of ``wandb.init()``, with those that its settings name, and W&B's variables for what is not given."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._arguments, self._settings = arguments, arguments.get("settings")

    def __getitem__(self, name: str) -> Any:
        given = self._arguments.get(name)
        if given is None:
            given = _explicit(self._settings, _OF_SETTINGS[name])
        if given is None and name in _OF_ENVIRONMENT and not (name == "id" and os.environ.get(RUN_ID.name)):
            given = os.environ.get(_OF_ENVIRONMENT[name]) or None
        return given


def _explicit(settings: Any, field: str) -> Any:
    """Return a field that the program set in its ``wandb.Settings`` or dict; ``None``: not set."""
    if isinstance(settings, dict):
        return cast("dict[str, Any]", settings).get(field)
    found: Any = getattr(settings, field, None)
    return found if field in getattr(settings, "model_fields_set", ()) else None


def begin(asked: Any, *, name: str | None = None, id_: str | None = None, project: str | None = None) -> Run:
    """Begin the run of otel-bridge that W&B's arguments name. Every process records, as in W&B: rank 0."""
    given = asked["id"] if id_ is None else id_
    tags = asked["tags"]
    return api.init(
        _printable(asked["project"] or project),
        _printable(asked["name"] or name),
        id=None if given is None else _usable_id(str(given)),
        group=_printable(asked["group"]),
        tags=[tags] if isinstance(tags, str) else [str(tag) for tag in tags or ()],
        notes=asked["notes"],
        entity=_printable(asked["entity"]),
        job_type=_printable(asked["job_type"]),
        rank=0,
    )


def _facts(run: Run, asked: _Asked, *, resumed: bool) -> RunFacts:
    given = asked["id"]
    return RunFacts(
        id=run.id if given is None else str(given),
        name=run.name,
        project=run.project,
        entity=str(asked["entity"] or ""),
        group=str(asked["group"] or ""),
        job_type=str(asked["job_type"] or ""),
        notes=asked["notes"],
        tags=tuple(asked["tags"] or ()),
        resumed=resumed,
    )


def _resumed_step(run: Run) -> int | None:
    """Return the step after the last one of a run that was delivered before."""
    report = None if run.recorder is None else read_report(run.recorder.folder)
    last = None if report is None else report.steps.get(axis_of(run.role))
    return None if last is None else last + 1


def _usable_id(given: str) -> str:
    return given if _VALID_ID.fullmatch(given) else run_id_of("", given)


def _printable(text: Any) -> str | None:
    """Return a name as otel-bridge accepts it; W&B accepts any text."""
    if text is None:
        return None
    return "".join(char for char in str(text).strip() if char.isprintable())[:_MAX_NAME] or None


def _capture_tensorboard() -> None:
    try:
        hook.capture("tensorboard", mode="replace")
    except ConfigError:  # it is captured in the other mode, which is the same for event files
        return


def _refuse_twice() -> None:
    env = environment()
    choice = choose(None, env, Path.cwd(), launched=launcher_alive(env), elsewhere=True)
    refuse_twice(("wandb",), "tee", choice.names)


class _NeutralApi:
    """``wandb.api``, whose key is always there; everything else is the package's own."""

    def __init__(self, real: Any, key: Callable[[], str | None]) -> None:
        self._real, self._given = real, key

    @property
    def api_key(self) -> str:
        """Return the key given to ``login()`` or the environment, else a text in place of a key."""
        return self._given() or os.environ.get("WANDB_API_KEY") or _NEUTRAL_KEY

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
