"""Arguments of ``wandb.init()`` -> the run of otel-bridge, and what the program sees of it.

What raises here reaches the program, as an error of its ``wandb.init()``.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from otel_bridge import semconv
from otel_bridge.capture.wandb.earlier import EarlierRun
from otel_bridge.capture.wandb.recording import WandbRecording
from otel_bridge.emit.config.run_request import RunRequest, is_chosen, usable_name
from otel_bridge.emit.process_runs import runs
from otel_bridge.emit.run import Run
from otel_bridge.records import run_id_of
from otel_bridge.settings import PROJECT, RUN_ID, RUN_NAME

_OF_RUN = frozenset({"name", "id", "group", "job_type", "notes", "tags"})
"""Arguments of ``wandb.init()`` whose field of ``wandb.Settings`` begins with ``run_``."""
_OF_SETTINGS = (
    "project", "entity", *sorted(_OF_RUN), "reinit", "mode", "resume", "fork_from", "resume_from",
    "sync_tensorboard",
)  # fmt: skip
"""Arguments that override a field of ``wandb.Settings``."""
_OF_ENVIRONMENT = {
    "project": "WANDB_PROJECT", "name": "WANDB_NAME", "id": "WANDB_RUN_ID", "group": "WANDB_RUN_GROUP",
    "job_type": "WANDB_JOB_TYPE", "entity": "WANDB_ENTITY", "resume": "WANDB_RESUME", "notes": "WANDB_NOTES",
    "tags": "WANDB_TAGS", "reinit": "WANDB_REINIT", "fork_from": "WANDB_FORK_FROM", "resume_from": "WANDB_RESUME_FROM",
}  # fmt: skip
_CHOSEN = {"project": PROJECT, "name": RUN_NAME, "id": RUN_ID}
"""Variables of otel-bridge that win over W&B's, unless a launcher or an earlier run of the process generated them."""
_OF_SETUP = (_OF_RUN - {"id"}) | {"project", "entity"}
"""Arguments that the settings of ``wandb.setup()`` give to runs that do not name them."""
_VALID_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MOMENTS = ("fork_from", "resume_from")
_TRUE = frozenset({"1", "on", "t", "true", "y", "yes"})
"""Texts that W&B reads as ``True``, in any case."""
_FINISHES = _TRUE | {"finish_previous"}
"""Values of *reinit* that end the run before."""


class WandbArguments:
    """Holds what the program gives to ``wandb.init()``, completed from W&B's variables and ``wandb.setup()``.

    Args:
        package: The package ``wandb``.
        arguments: The arguments by name.

    Raises:
        Exception: W&B's own error for a value that it refuses (pydantic's ``ValidationError``),
            before anything is recorded.
    """

    def __init__(self, package: Any, arguments: Mapping[str, Any]) -> None:
        settings: Any = arguments.get("settings")
        if isinstance(settings, package.Settings):
            # A copy: the program may begin another run with its object.
            self.settings: Any = settings.model_copy()
        else:
            self.settings = package.Settings(
                **(settings if isinstance(settings, dict) else {})
            )
        # Its older name.
        values = {"sync_tensorboard": arguments.get("tensorboard"), **arguments}
        for name in _OF_SETTINGS:
            if values.get(name) is not None:
                setattr(self.settings, _field_of(name), values[name])
        self._setup = package.sdk.wandb_setup.singleton().settings

    @property
    def beside(self) -> bool:
        """Return whether the run is one next to others of the process, and does not become ``wandb.run``."""
        return bool(self["reinit"] == "create_new")

    @property
    def mode(self) -> str:
        """Return W&B's mode, such as ``disabled``."""
        return str(self["mode"] or self._setup.mode)

    @property
    def resumes(self) -> bool:
        """Return whether a run that exists is resumed."""
        return (bool(self["resume"]) and self["resume"] != "never") or self[
            "resume_from"
        ] is not None

    def __getitem__(self, name: str) -> Any:
        """Return the argument *name* of ``init()``; ``None`` when nothing gives it.

        The program's own goes first, then variables of otel-bridge, which the run reads itself
        (``None`` here), then ``WANDB_…`` as they are now, and last ``wandb.setup()``. A run without
        an id that resumes from another one is that run.
        """
        value = _explicit(self.settings, name)
        if value is None and name == "id" and self.settings.resume_from is not None:
            value = self.settings.resume_from.run
        # The program's own arguments go first, then variables of otel-bridge, then those of W&B.
        if value is None and not _is_chosen(name):
            value = os.environ.get(_OF_ENVIRONMENT.get(name, "")) or None
            if value is None and name in _OF_SETUP:
                value = _explicit(self._setup, name)
        if name == "tags" and isinstance(value, str):
            # WANDB_TAGS holds them with commas.
            return value.split(",")
        return value


def _field_of(name: str) -> str:
    """Return the field of ``wandb.Settings`` that the argument *name* overrides.

    W&B names fields of the run itself with a prefix, since its settings hold those of other things
    too.
    """
    return f"run_{name}" if name in _OF_RUN else name


def _is_chosen(name: str) -> bool:
    """Return whether the user's variables of otel-bridge give the argument *name*.

    Then W&B's variables are not asked, and the run reads those of otel-bridge itself.
    """
    return name in _CHOSEN and is_chosen(_CHOSEN[name], runs.environment_of_user())


def _explicit(settings: Any, name: str) -> Any:
    """Return the argument *name* as it was set in ``wandb.Settings``.

    ``None`` where it has its default.
    """
    field = _field_of(name)
    if field in settings.model_fields_set:
        return getattr(settings, field)
    return None


def begin(arguments: WandbArguments, group: str | None = None) -> Run:
    """Begin the run of otel-bridge that W&B's arguments name.

    Every process records, as in W&B: rank 0.

    Names lose what cannot be printed, and an id that a run folder cannot have is replaced by one
    made of it.

    Args:
        arguments: The arguments.
        group: Group where they have none.

    Raises:
        ConfigError: A setting of otel-bridge cannot be used.
        MissingExtraError: An exporter's package is not installed.
    """
    run_id = arguments["id"]
    return runs.begin(
        RunRequest(
            captured="wandb",
            project=usable_name(arguments["project"]),
            name=usable_name(arguments["name"]),
            id=None if run_id is None else _usable_id(str(run_id)),
            group=usable_name(arguments["group"] or group),
            tags=[str(tag) for tag in arguments["tags"] or ()],
            notes=arguments["notes"],
            entity=usable_name(arguments["entity"]),
            job_type=usable_name(arguments["job_type"]),
            resume=_resume_at_server(arguments["resume"]),
            rank=0,
            handle=arguments.beside,
        )
    )


def _resume_at_server(resume: Any) -> str | None:
    """Return how the exporter wandb treats an existing run; ``None`` for the bridge's own rule.

    Not *must*: a process with it may join a run of this program that no bridge has opened yet.
    """
    return None if resume in (None, "must") else str(resume)


def rename(run: Run, name: object) -> bool:
    """Record the name that the program gave *run* after its begin.

    Return whether trackers will show it.

    They do in place of a generated name. A name that was given when the run began stays.

    ``False`` too for an empty name, and where nothing is recorded; the caller counts that.
    """
    printable_name = usable_name(name)
    if (
        not printable_name
        or not run.facts.identity.name_generated
        or run.recorder is None
    ):
        return False
    run.recorder.event(semconv.EVENT_RENAMED, {semconv.RUN_NAME: printable_name})
    return True


def recording_of(
    run: Run, arguments: WandbArguments, earlier: EarlierRun | None
) -> WandbRecording:
    """Return what records *run*.

    Moments of ``fork_from`` and ``resume_from`` are counted as ``not_captured``.
    """
    recording = WandbRecording(run, earlier)
    for name in _MOMENTS:
        # Earlier rows are neither copied nor deleted, and the step is not that of the moment.
        if arguments[name] is not None:
            recording.not_captured(f"wandb.init({name}=)")
    return recording


def settings_of(
    run: Run, arguments: WandbArguments, *, resumed: bool
) -> dict[str, Any]:
    """Return the fields of ``wandb.Settings`` that name *run*, which the program reads as attributes of its run.

    Args:
        run: The run of otel-bridge.
        arguments: What the program has given.
        resumed: Whether the run existed before and is resumed.
    """
    explicit_id = arguments["id"]
    mode = arguments.mode
    return {
        # Its older names are replaced, as W&B does.
        "mode": {"dryrun": "offline", "run": "online"}.get(mode, mode),
        # As given: other processes of the program join by it, also where a run folder cannot have
        # it.
        "run_id": run.id if explicit_id is None else str(explicit_id),
        "run_name": run.name,
        "project": run.project,
        "entity": arguments["entity"] or None,
        "run_group": arguments["group"] or None,
        "run_job_type": arguments["job_type"] or None,
        "run_notes": arguments["notes"],
        "run_tags": tuple(arguments["tags"] or ()) or None,
        "resumed": resumed,
        # W&B's own folders; `run.dir` is ours.
        "root_dir": tempfile.gettempdir(),
    }


def _usable_id(run_id: str) -> str:
    # W&B takes ids that a run folder cannot have: the id made of one is the same everywhere.
    if _VALID_ID.fullmatch(run_id):
        return run_id
    return run_id_of("", run_id)


def goes_on(current: Any, arguments: WandbArguments) -> bool:
    """Return whether ``init()`` returns the current run, by W&B's rules for *reinit*.

    In a forked child the current run is the parent's: the child continues it, unless it asks for
    another one.

    ``False``: the caller finishes the current one first, as W&B does for
    ``reinit="finish_previous"``.
    """
    recorder = current.recording.run.recorder
    if recorder is not None and recorder.forked:
        names = (
            (arguments["name"], current.name),
            (arguments["id"], current.id),
            (arguments["project"], current.project),
        )
        return all(
            requested_name in {None, current_name}
            for requested_name, current_name in names
        )
    reinit = arguments["reinit"]
    # W&B's default: an interactive session ends the run before, a script goes on with it.
    ends = str(reinit).lower() in _FINISHES or (
        reinit in (None, "default") and hasattr(sys, "ps1")
    )
    return not ends
