"""Capture of ``trackio``: its ``init()`` begins an otel-bridge run, and its traces become rollouts.

The real package stays the surface: ``trackio.init`` returns a ``trackio.Run`` that starts no thread
and opens no store and no Space. The package's own ``log``, ``finish`` and ``alert`` call that run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from otel_bridge.capture.config import both, record_config, requested_exporters
from otel_bridge.capture.counts import counts
from otel_bridge.capture.media import media_of
from otel_bridge.capture.trackio_traces import TraceReader
from otel_bridge.capture.wandb.run import behave_as_logged
from otel_bridge.capture.wandb.values.logged_values import LatestValues, ValueSorter
from otel_bridge.emit.arguments import INTERNAL_ERROR
from otel_bridge.emit.config.capture_env import refuse_twice
from otel_bridge.emit.config.run_request import RunRequest, usable_name
from otel_bridge.emit.encode.values import to_step
from otel_bridge.emit.process_runs import runs
from otel_bridge.emit.rollouts.rollout import Rollout
from otel_bridge.emit.run import Run
from otel_bridge.errors import any_error_but_signals
from otel_bridge.journal.base_dir import base_dir, working_folder
from otel_bridge.journal.folder import run_folders
from otel_bridge.records import run_id_of
from otel_bridge.settings import RUN_ID, environment
from otel_bridge.values.plain import by_text, mapping_of

_MUST = "must"
_NEVER = "never"
_RESUME = (_MUST, "allow", _NEVER)
_ALLOW_CHANGE = "allow_val_change"
_HISTOGRAM = "trackio.histogram"
_NEUTRAL_CALLS = ("save", "freeze", "sync")
_REMOTE_VARIABLES = ("current_server", "current_space_id", "current_server_write_token")


def install(module: ModuleType, mode: str) -> None:
    """Capture *module*, the package ``trackio``; a second call changes nothing.

    Raises `AttributeError` where the package lacks what is replaced; the import hook prints it.

    Args:
        module: The package, wholly loaded.
        mode: ``replace`` or ``tee``.
    """
    package: Any = module
    real_init: Callable[..., Any] = package.init
    if getattr(real_init, "otel_bridge_capture", False):
        return
    captured = _run_class(package)

    def init(
        project: str,
        name: str | None = None,
        group: str | None = None,
        *extra: Any,
        **keywords: Any,
    ) -> Any:
        """Begin a run of otel-bridge in place of Trackio's, or next to it.

        Raises:
            ConfigError: A setting of otel-bridge cannot be used, or Trackio is an exporter in mode
                ``tee``.
            TypeError: The installed Trackio has no argument of that name, or *config* has no fields.
            ValueError: As `_check_resume`.
        """
        if mode == "tee":
            # Before Trackio begins its run, so that an error leaves none there.
            refuse_twice(("trackio",), mode, requested_exporters())
            run = real_init(project, name, group, *extra, **keywords)
            # Trackio counts up the names that it makes, from the runs of its store (0.43,
            # ``generate_readable_name``): another job may have the same, so that the id names it.
            is_new = name is None and not RUN_ID.read(runs.environment_of_user())
            new_id: str | None = run.id if is_new else None
            recorded = _begin(
                usable_name(project) or "",
                usable_name(name or run.name),
                group,
                run.config,
                id=new_id,
            )
            _record_too(run, recorded)
            # `trackio.config` is bound to the config of before, whose changes would not be
            # recorded.
            package.config = run.config
            return run
        # By the signature of the installed version, whose arguments may differ.
        arguments = (
            signature(real_init)
            .bind_partial(project, name, group, *extra, **keywords)
            .arguments
        )
        project_name = usable_name(project) or ""
        run_name = usable_name(name)
        _check_resume(project_name, run_name, arguments.get("resume", _NEVER))
        _finish_other(package, project_name, run_name)
        config = _TrackioConfig(_entries_of(arguments.get("config")))
        run = captured(_begin(project_name, run_name, group, config), group, config)
        _set_current(package, run)
        return run

    init.__dict__["otel_bridge_capture"] = True
    package.init = init
    if mode == "replace":
        for name in _NEUTRAL_CALLS:
            if hasattr(package, name):
                setattr(package, name, _neutral(f"trackio.{name}"))


def _entries_of(config: Any) -> Mapping[Any, Any]:
    """Return the entries of ``init(config=)``: a mapping, or the fields of another object, such as a namespace.

    Empty for ``None``, and for another value that is false, as in Trackio (0.43, ``to_json_safe``).

    Raises `TypeError` for an object without fields.
    """
    if not config:
        return {}
    fields = mapping_of(config)
    if fields is not None:
        return fields
    attributes = cast("dict[str, Any]", vars(config))
    return {name: value for name, value in attributes.items() if name[0] != "_"}


def _check_resume(project: str, name: str | None, resume: object) -> None:
    """Raise what Trackio raises for *resume*: a run that must exist does when it has a run folder on this machine.

    A run that is only on another machine counts as missing. ``never``, which is Trackio's default,
    is not refused: a restarted job continues its run.

    Raises:
        ConfigError: The working folder was deleted.
        ValueError: As in Trackio: *resume* is unknown, or a run that must exist has no name or no
            folder.
    """
    if resume not in _RESUME:
        raise ValueError("resume must be one of: 'must', 'allow', or 'never'")
    if resume != _MUST:
        return
    if name is None:
        raise ValueError("Must provide a run name when resume='must'")
    env = environment()
    base = base_dir(env, working_folder())
    run_id = RUN_ID.read(env) or run_id_of(project, name)
    if not any(folder.run_id == run_id for folder in run_folders(base)):
        raise ValueError(
            f"Run '{name}' does not exist in project '{project}': no run folder of it is in {base}"
        )


def _begin(
    project: str,
    name: str | None,
    group: str | None,
    config: Mapping[str, Any],
    *,
    id: str | None = None,  # noqa: A002  # the word of `init()`
) -> Run:
    """Begin the run of otel-bridge, or join the process's run of these names; without a name it is a new one.

    The earlier run of this thread or task has been finished; those of others go on, as in Trackio.
    Every process records, whatever its rank, since Trackio knows no ranks.

    Raises:
        ConfigError: A setting of otel-bridge cannot be used.
        MissingExtraError: An exporter's package is not installed.
    """
    # Trackio's own entries.
    entries = {key: value for key, value in config.items() if not key.startswith("_")}
    return runs.begin(
        RunRequest(
            captured="trackio",
            leaves_open_runs=True,
            project=project,
            name=name,
            id=id,
            group=group,
            rank=0,
            config=entries or None,
        )
    )


def _finish_other(package: Any, project: str, name: str | None) -> None:
    """Finish the current run if it is another one, as Trackio's ``init()`` does.

    Both names count: a run of another project is another one, also with the same name. It waits for
    delivery as `Run.finish` does.
    """
    current = package.context_vars.current_run.get()
    if current is not None and (current.project, current.name) != (project, name):
        current.finish()


def _set_current(package: Any, run: Any) -> None:
    """Make *run* the package's current run, of no Hugging Face Space or server.

    Frameworks deploy the Space that is current. Variables that this version of Trackio lacks are
    left out.
    """
    variables = package.context_vars
    for name in _REMOTE_VARIABLES:
        if hasattr(variables, name):
            getattr(variables, name).set(None)
    variables.current_project.set(run.project)
    variables.current_run.set(run)
    package.config = run.config


def _neutral(call: str) -> Callable[..., str]:
    """Return a call that returns an empty text, and only counts itself: in the process's run too, if there is one.

    It never raises, whatever its arguments are.
    """

    def neutral(*_arguments: object, **_keywords: object) -> str:
        """Do nothing: the call has no counterpart, and is counted."""
        counts.not_captured(call)
        run = runs.current
        if run is not None:
            run.count_drop("not_captured", key=call)
        return ""

    return neutral


class _TrackioConfig(dict[str, Any]):
    """Records each change of a run's config, once the run has begun.

    A dict's own methods do not call one another, so that each of them that sets entries is
    replaced.
    """

    run: Run | None = None

    def __setitem__(self, key: str, value: Any) -> None:
        self.update({key: value})

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Set and record *key*, if it is not set."""
        if key not in self:
            self.update({key: default})
        return self[key]

    def update(self, *mappings: Any, **entries: Any) -> None:
        """Set and record entries; ``allow_val_change``, as in W&B, is not an entry.

        Raises as a dict does for arguments that it cannot take; nothing is set or recorded then.
        """
        entries.pop(_ALLOW_CHANGE, None)
        new: dict[str, Any] = dict(*mappings, **entries)
        super().update(new)
        if self.run is not None:
            counts.captured("trackio.config", len(new), run=self.run)
            record_config(self.run, new)

    def __ior__(self, entries: Any) -> _TrackioConfig:  # type: ignore[override, misc]  # a dict's own has two forms
        self.update(entries)
        return self


class TrackioRecording:
    """Records what a Trackio run is given: rows by Trackio's counting of steps, and traces as rollouts.

    Args:
        run: The run of otel-bridge.
    """

    def __init__(self, run: Run) -> None:
        counts.captured("trackio.init", run=run)
        self.run = run
        self._sorter = ValueSorter(run.count_drop)
        self._texts = LatestValues(run.summary, run.count_drop)
        self._traces = TraceReader()
        run.call_before_end(lambda _run: self._end())
        self.next_step = run.next_step()

    def log(self, metrics: Any, step: int | None = None) -> None:
        """Record a row and its traces; never raises.

        A trace that cannot be read is left out alone.

        Without a step the row has the next one, and a higher step moves that on, as in Trackio. A
        step that cannot be read is counted as ``bad_step``, and the row gets the next one. After
        ``finish()`` the run counts the row as late.
        """
        counts.captured("trackio.log", run=self.run)
        try:
            values: dict[str, Any] = {}
            if isinstance(metrics, Mapping):
                values = by_text(
                    cast("Mapping[object, object]", metrics), self.run.count_drop
                )
            else:  # counted by its kind; Trackio writes an empty row
                self.run.log(metrics)
            number = to_step(step, self.run.count_drop)
            row_step = self.next_step if number is None else number
            self.next_step = max(self.next_step, row_step + 1)
            self._record(values, row_step)
        except any_error_but_signals():  # objects of the user's
            self.run.count_drop(INTERNAL_ERROR)

    def _record(self, values: Mapping[str, Any], step: int) -> None:
        """Record the values of one call: texts, rollouts, and the others as a row.

        Raises what an object of the program raises; `log` counts it, and the rest of the call is lost.
        """
        other_values: dict[str, Any] = {}
        rollouts: list[Rollout] = []
        for key, value in values.items():
            traces = _traces(value)
            if not traces:
                other_values[key] = value
            for trace in traces:
                self._take(trace, key, rollouts)
        logged = self._sorter.sort(other_values)
        if logged.texts:
            counts.captured("trackio.log: texts", len(logged.texts), run=self.run)
            self._texts.note(logged.texts)
        self._texts.note_row(logged.row)
        row = {**logged.row, **logged.media}
        if row:
            self.run.log({key: self._value(row[key]) for key in row}, step)
        if rollouts:
            self.run.log_rollouts(rollouts, step=step)

    def _end(self) -> None:
        """Record what waits: texts, and how many calls of verl have no rollout, counted as ``rollout_unfinished``.

        Called before the run's end, also at the exit of the process.
        """
        self._texts.flush()
        unfinished = self._traces.unfinished()
        if unfinished:
            self.run.count_drop("rollout_unfinished", unfinished)

    def _value(self, value: Any) -> Any:
        """Return a medium in our form, and any other value as it is.

        An object of Trackio that is not known here is counted for the launcher's table; the row then
        drops and counts it.
        """
        medium = media_of(value)
        if medium is not None:
            counts.captured(f"trackio.{_class_of(value)}", run=self.run)
            return medium
        if (
            getattr(value, "TYPE", _HISTOGRAM) != _HISTOGRAM
        ):  # of a kind that is not known here
            counts.not_captured(str(value.TYPE))
        elif hasattr(value, "TYPE"):  # a row takes it as it is
            counts.captured("trackio.Histogram", run=self.run)
        return value

    def _take(self, trace: Any, key: str, rollouts: list[Rollout]) -> None:
        """Add the rollout of a trace to *rollouts*; nothing for a call inside a loop of verl.

        A trace that cannot be read is counted as ``rollout_unreadable`` with its key, and costs
        only itself.
        """
        try:
            rollout = self._traces.rollout(trace, key)
            counts.captured(
                "trackio.Trace: " + ("calls" if rollout is None else "rollouts"),
                run=self.run,
            )
            if rollout is not None:
                rollouts.append(rollout)
        except any_error_but_signals():  # what the program put into the trace
            self.run.count_drop("rollout_unreadable", key=key)

    def alert(
        self,
        title: Any = None,
        text: Any = None,
        level: Any = "warn",
        *_arguments: Any,
        **_keywords: Any,
    ) -> None:
        """Record an alert.

        Never raises. One without a title, or beyond the limit, is counted by the run.
        """
        counts.captured("trackio.alert", run=self.run)
        self.run.alert(title, text, level)

    def not_captured(self, call: str) -> None:
        """Count a call that has no counterpart."""
        counts.not_captured(call)
        self.run.count_drop("not_captured", key=call)


def _class_of(value: Any) -> str:
    """Return the name of a medium's class as the package exports it.

    ``TrackioImage`` is ``trackio.Image``; of a list, that of its first entry.
    """
    if isinstance(value, (list, tuple)):
        entry = cast("list[object]", value)[0]
    else:
        entry = value
    return type(entry).__name__.removeprefix("Trackio")


def _traces(value: Any) -> list[Any]:
    """Return the traces of a value, which is a ``Trace`` or a list of them; else nothing.

    A list with anything else in it is a value as any other.
    """
    items: list[Any] = value if isinstance(value, list) else [value]  # pyright: ignore[reportUnknownVariableType]  # any list
    if items and all(getattr(item, "TYPE", None) == "trackio.trace" for item in items):
        return items
    return []


def _record_too(run: Any, recorded: Run) -> None:
    """Let Trackio's own *run* record what it is given in *recorded* as well.

    Trackio's package calls the methods of its run, so that the module's functions need no change.
    What is recorded goes first, so that a failure of Trackio costs it nothing.
    """
    recording = TrackioRecording(recorded)
    run.log = both(recording.log, run.log)
    run.finish = both(recorded.finish, run.finish)
    run.alert = both(recording.alert, run.alert)
    run.config = _TrackioConfig(run.config)
    run.config.run = recorded


class RecordedTrackioRun:
    """Records what a ``trackio.Run`` is given.

    `_run_class` adds the class of the installed package as the second base class.

    Attributes:
        package: The package ``trackio``.
    """

    package: Any

    def __init__(self, run: Run, group: str | None, config: _TrackioConfig) -> None:
        self.recording = TrackioRecording(run)
        self.project = run.project
        self.name = run.name
        self.id = run.id
        self.group = group
        self.config = config
        self.url = None
        # transformers freezes a Space when it finds one here.
        self._space_id = None
        self._bucket_id = None
        self._server_base_url = None
        self._is_local = True
        # From here on changes of the config are recorded.
        config.run = run

    def log(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Record a row and its traces."""
        self.recording.log(metrics, step)

    def alert(self, *arguments: Any, **keywords: Any) -> None:
        """Record an alert."""
        self.recording.alert(*arguments, **keywords)

    def log_system(self, *_arguments: Any, **_keywords: Any) -> None:
        """Count the call, and record nothing: the bridge measures the machine."""
        self.recording.not_captured("trackio.Run.log_system")

    def log_artifact(
        self,
        artifact_or_path: Any,
        name: Any = None,
        type: Any = None,  # noqa: A002  # Trackio's
        **_keywords: Any,
    ) -> Any:
        """Return the artifact as if it were logged, which is counted; of a path, one without files.

        Raises what Trackio raises for a name that an artifact cannot have.
        """
        self.recording.not_captured("trackio.Run.log_artifact")
        artifact = artifact_or_path
        if not isinstance(artifact, self.package.Artifact):
            artifact = self.package.Artifact(
                name or Path(artifact_or_path).name, type or "unspecified"
            )
        behave_as_logged(artifact)
        return artifact

    def link_artifact(self, artifact: Any, *_arguments: Any, **_keywords: Any) -> Any:
        """Return the artifact; the call is counted."""
        self.recording.not_captured("trackio.Run.link_artifact")
        return artifact

    def use_artifact(
        self, artifact_or_name: Any, *arguments: Any, **keywords: Any
    ) -> Any:
        """Return the artifact, read by Trackio from its store on this machine.

        Raises what Trackio raises, e.g. where the store has none of that name: the program needs the files.
        """
        self.recording.not_captured("trackio.Run.use_artifact")
        if isinstance(artifact_or_name, str):
            return self.package.Run.use_artifact(
                self, artifact_or_name, *arguments, **keywords
            )
        return artifact_or_name

    def _warn_once(self, _key: str, message: str) -> None:
        """Warn, as Trackio's `use_artifact` does of a store that it cannot write."""
        warnings.warn(message, stacklevel=2)

    def finish(self) -> None:
        """End the run, and wait for delivery as `Run.finish` does; a second call does nothing."""
        self.recording.run.finish()
        current_run = self.package.context_vars.current_run
        if current_run.get() is self:
            current_run.set(None)


def _run_class(package: Any) -> Any:
    """Return a subclass of ``trackio.Run`` whose runs only record."""
    bases = (RecordedTrackioRun, package.Run)
    return type("CapturedTrackioRun", bases, {"package": package})
