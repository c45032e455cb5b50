"""Capture of ``wandb``: its ``init()`` begins an otel-bridge run, and ``log()`` becomes rows and rollouts.

The real package stays the surface: ``wandb.init`` returns a ``wandb.Run`` that starts no service
process, makes no folder and reaches no network. ``wandb.Api`` stays as it is. Runs that the program
disables are W&B's own, and are not recorded. A trial of a sweep is recorded as the run that the
sweep's agent names. What raises here, a wrong setting for instance, reaches the program from the
call that it has made.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from inspect import signature
from types import ModuleType
from typing import Any

from otel_bridge.capture import tensorboard
from otel_bridge.capture.config import requested_exporters
from otel_bridge.capture.wandb.arguments import (
    WandbArguments,
    begin,
    goes_on,
    recording_of,
    settings_of,
)
from otel_bridge.capture.wandb.earlier import earlier_run
from otel_bridge.capture.wandb.recording import WandbRecording
from otel_bridge.capture.wandb.run import run_class
from otel_bridge.capture.wandb.sweeps import SweepTrial, current_trial, stoppable
from otel_bridge.capture.wandb.tee import copy_too
from otel_bridge.emit.config.capture_env import refuse_twice
from otel_bridge.emit.config.child_env import launcher_alive
from otel_bridge.settings import environment

_MARK = "otel_bridge_capture"
_GLOBALS = (
    "run", "config", "summary", "log", "save", "alert", "use_artifact", "log_artifact", "define_metric", "watch",
    "unwatch", "mark_preempting", "log_model", "use_model", "link_model", "pin_config_keys",
)  # fmt: skip
"""Names of the package that belong to its current run."""
_API_KEY = "WANDB_API_KEY"
_BASE_URL = "WANDB_BASE_URL"
_NEUTRAL_KEY = "otel-bridge"


def install(module: ModuleType, mode: str) -> None:
    """Capture *module*, the package ``wandb``; a second call changes nothing.

    Raises `AttributeError` where the package lacks what is replaced; the import hook prints it.

    Args:
        module: The package, wholly loaded.
        mode: ``replace`` or ``tee``.
    """
    package: Any = module
    if not getattr(package.init, _MARK, False):
        _Capture(package, mode).install()


class _Capture:
    """Captures one copy of the package."""

    def __init__(self, package: Any, mode: str) -> None:
        self._package = package
        self._mode = mode
        self._real_init: Callable[..., Any] = package.init
        self._real_login: Callable[..., bool] = package.login
        self._real_teardown: Callable[..., None] = package.teardown
        self._real_api: Any = package.api
        self._key: str | None = None
        self._class: Any = run_class(package)

    def install(self) -> None:
        """Replace the functions of the package that begin a run or reach a server."""
        package = self._package
        self._replace("init", self.init)
        if self._mode == "replace":
            # wandb 0.31 checks a key over the network in login(), where slime failed.
            self._replace("login", self.login)
            self._replace("setup", self.setup)
            self._replace("teardown", self.teardown)
            package.api = _NeutralApi(self._real_api, lambda: self._key)

    def _replace(self, name: str, call: Callable[..., Any]) -> None:
        """Replace a function of the package, wherever the package holds it.

        ``wandb.init`` and its like are called positionally and by name, so the signature stays W&B's.
        """
        real = getattr(self._package, name)

        @functools.wraps(real)
        def replaced(*arguments: Any, **keywords: Any) -> Any:
            return call(*arguments, **keywords)

        replaced.__dict__[_MARK] = True
        # `wandb.sdk` has the same functions by the same names (0.31).
        for holder in (self._package, self._package.sdk):
            if getattr(holder, name, None) is real:
                setattr(holder, name, replaced)

    # --- what the program calls -------------------------------------------------------------------

    def init(self, *positional: Any, **keywords: Any) -> Any:
        """Begin a run of otel-bridge in place of W&B's, or next to it.

        Raises:
            ConfigError: A setting of otel-bridge cannot be used, or W&B is an exporter in mode ``tee``.
            TypeError: The installed W&B has no argument of that name.
            Exception: W&B's own error for an argument that it refuses; nothing is recorded then.
        """
        arguments: dict[str, Any] = dict(
            signature(self._real_init).bind_partial(*positional, **keywords).arguments
        )
        wandb_arguments = WandbArguments(self._package, arguments)
        if wandb_arguments.mode == "disabled":
            return self._real_init(*positional, **keywords)
        if self._mode == "tee":
            # Before W&B begins its run, so that an error leaves none there.
            refuse_twice(("wandb",), "tee", requested_exporters())
            run_before = self._package.run
            run = self._real_init(*positional, **keywords)
            # A run that goes on (`reinit`) has its copy already.
            if run is not run_before:
                names = {"name": run.name, "id": run.id, "project": run.project}
                copied = begin(WandbArguments(self._package, {**arguments, **names}))
                if wandb_arguments["sync_tensorboard"]:
                    tensorboard.sync(copied)
                copy_too(self._package, run, WandbRecording(copied))
            return run
        trial = current_trial(self._package)
        if trial is not None:
            wandb_arguments = WandbArguments(self._package, trial.arguments(arguments))
        run = self._current(wandb_arguments)
        if run is None:
            run = self._begin(wandb_arguments, arguments, trial)
        if wandb_arguments["sync_tensorboard"]:
            tensorboard.sync(run.recording.run)
        return run

    def login(self, *positional: Any, **keywords: Any) -> bool:
        """Accept any key and host without a check.

        This process's calls of W&B and the exporter use them.

        Raises:
            ConfigError: Under a launcher, the exporters cannot be read.
            TypeError: The installed W&B has no argument of that name.
            Exception: pydantic's ``ValidationError``, for a host that is not an address.
        """
        arguments = (
            signature(self._real_login).bind_partial(*positional, **keywords).arguments
        )
        key = arguments.get("key")
        host = arguments.get("host")
        if isinstance(host, str) and host:
            host = host.rstrip("/")
            os.environ[_BASE_URL] = host
            # These settings were read from the environment before, and are not read again.
            self._package.sdk.wandb_setup.singleton().settings.base_url = host
        if isinstance(key, str) and key:
            self._key = key
            os.environ[_API_KEY] = key
        if launcher_alive(environment()) and "wandb" in requested_exporters():
            # The launcher has another environment. It reads the files in which W&B's own call
            # stores both.
            # Of a W&B below 0.25, which stores them by other functions.
            with suppress(AttributeError, OSError):
                self._store_login(key, host)
        return True

    def _store_login(self, key: str | None, host: str | None) -> None:
        """Store key and host where W&B's own call does: in its settings of the user, and in netrc.

        Raises `AttributeError` in wandb below 0.25, and `OSError` where the home folder cannot be
        written.
        """
        sdk = self._package.sdk
        settings = sdk.wandb_setup.singleton().settings
        if host:
            sdk.wandb_login._update_system_settings(
                settings.read_system_settings(), host=host
            )
        if key:
            sdk.lib.wbauth.wbnetrc.write_netrc_auth(
                host=str(settings.base_url), api_key=key
            )

    def setup(self, settings: Any = None) -> Any:
        """Load W&B's settings as its own call does, but start no service process."""
        return self._package.sdk.wandb_setup._setup(
            settings=settings, start_service=False
        )

    def teardown(self, exit_code: Any = None) -> None:
        """End the run, and forget the settings: a sweep's agent names the next run by variables.

        Else the next run would have the settings of the last one: W&B's singleton reads the
        variables once. The run waits for delivery as `Run.finish` does.
        """
        if self._package.run is not None:
            self._package.run.finish(exit_code=exit_code)
        self._real_teardown(exit_code=exit_code)

    # --- a run ------------------------------------------------------------------------------------

    def _current(self, arguments: WandbArguments) -> Any:
        """Return the run that continues, by W&B's rules for *reinit*.

        ``None``: a new one begins, also for ``reinit="create_new"``, and while a run of W&B itself,
        e.g. a disabled one, is the current one. A run that *reinit* ends is finished here, before
        the next one begins.
        """
        current = self._package.run
        if current is None or not isinstance(current, self._class) or arguments.beside:
            return None
        if not goes_on(current, arguments):
            current.finish()
            return None
        return current

    def _begin(
        self,
        wandb_arguments: WandbArguments,
        arguments: dict[str, Any],
        trial: SweepTrial | None,
    ) -> Any:
        """Begin a run of otel-bridge, and return the ``wandb.Run`` that the program sees.

        W&B's own reading comes first: what it refuses is raised before anything is recorded.

        Raises:
            ConfigError: A setting of otel-bridge cannot be used.
            MissingExtraError: An exporter's package is not installed.
            Exception: W&B's own, e.g. for a config that it cannot read.
        """
        settings, config, sweep_config = self._parsed(arguments)
        if trial is not None:
            trial.notify(requested_exporters())
        run = begin(wandb_arguments, group=None if trial is None else trial.sweep_id)
        earlier = earlier_run(run) if wandb_arguments.resumes else None
        recording = recording_of(run, wandb_arguments, earlier)
        names = settings_of(run, wandb_arguments, resumed=earlier is not None)
        captured = self._class(
            recording, settings.model_copy(update=names), config, sweep_config
        )
        # Only what the program and the sweep give: entries of earlier starts are in the run
        # already.
        recording.config(dict(captured.config.items()))
        if earlier is not None:
            captured.add_earlier_config(earlier.config)
        if trial is not None:
            captured.log = stoppable(captured.log, run)
        if not wandb_arguments.beside:
            self._set_global(captured)
        return captured

    def _parsed(
        self, arguments: Mapping[str, Any]
    ) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """Return settings, config, and config of the sweep, as W&B's own ``init()`` makes them (0.23.1 to 0.31).

        The config comes from the argument, of any form, ``wandb.setup()`` and the sweep's file. Raises
        W&B's own errors for what it refuses, and `AttributeError` or `TypeError` where a version has other parts.
        """
        sdk = self._package.sdk
        wandb_init = sdk.wandb_init._WandbInit(
            sdk.wandb_setup.singleton(), sdk.lib.telemetry.TelemetryRecord()
        )
        explicit_settings = WandbArguments(self._package, arguments).settings
        # Else W&B asks its server for the settings of the user.
        explicit_settings.mode = "disabled"
        settings, show_warnings = wandb_init.make_run_settings(explicit_settings)
        # E.g. that a sweep ignores the project.
        show_warnings(sdk.lib.printer.new_printer(settings))
        parts = wandb_init.make_run_config(
            settings,
            arguments.get("config"),
            arguments.get("config_exclude_keys"),
            arguments.get("config_include_keys"),
        )
        config = {**parts.base_no_artifacts, **parts.artifacts}
        return settings, config, parts.sweep_no_artifacts

    def _set_global(self, run: Any) -> None:
        """Make *run* the package's current run.

        Its own ``set_global()`` lacks some of these names, such as ``pin_config_keys`` (0.31).
        """
        attributes = {
            name: getattr(run, name)
            for name in _GLOBALS
            if hasattr(run, name) and hasattr(self._package, name)
        }
        self._package.__dict__.update({**attributes, "run": run})


class _NeutralApi:
    """Replaces ``wandb.api``: its key is always given, everything else is the package's own.

    Programs ask for the key before they log to W&B, and stop or prompt without one.
    """

    def __init__(self, real: Any, key: Callable[[], str | None]) -> None:
        self._real = real
        self._given = key

    @property
    def api_key(self) -> str:
        """Return the key given to ``login()`` or the environment, else a text in place of a key."""
        return self._given() or os.environ.get(_API_KEY) or _NEUTRAL_KEY

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
