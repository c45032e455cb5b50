"""The calls of wandb that training programs make, without wandb: ``import otel_bridge.compat.wandb as wandb``.

They become what the capture makes of the real package. What only W&B itself can do, such as ``Api``, raises an error
that names the package.
"""

from __future__ import annotations

import os
import secrets
import time
import traceback
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

from otel_bridge.capture import tensorboard
from otel_bridge.capture.process_runs import rename
from otel_bridge.capture.wandb.arguments import RunFacts, WandbArguments, begin, facts_of, goes_on, recording_of
from otel_bridge.capture.wandb.earlier import earlier_run
from otel_bridge.capture.wandb.recording import WandbRecording
from otel_bridge.capture.wandb.run import NEUTRAL, NoArtifact
from otel_bridge.capture.wandb.values.summary import RecordedSummary
from otel_bridge.compat import errors
from otel_bridge.compat.config import WandbConfig, config_of_arguments
from otel_bridge.compat.errors import CommError, Error, UsageError, WandbConfigError, termerror, termlog, termwarn
from otel_bridge.compat.init_arguments import check_arguments, chosen_mode
from otel_bridge.compat.objects import (
    WandbAudio,
    WandbChart,
    WandbHistogram,
    WandbHtml,
    WandbImage,
    WandbMetric,
    WandbTable,
    WandbVideo,
    wandb_metric,
)
from otel_bridge.emit.startup import nothing_recorded
from otel_bridge.errors import MissingExtraError
from otel_bridge.settings import environment

__version__: Final = "0.31.0"
"""Version of wandb whose calls these are."""
__all__ = [
    "AlertLevel", "Artifact", "Audio", "CommError", "Config", "Error", "Histogram", "Html", "Image", "Molecule",
    "Object3D", "Plotly", "Run", "Settings", "Table", "UsageError", "Video", "api", "config", "data_types",
    "ensure_configured", "errors", "finish", "init", "join", "login", "require", "run", "sdk", "setup", "summary",
    "teardown", "termerror", "termlog", "termwarn", "util",
]  # fmt: skip
_OF_RUN: Final = frozenset({"log", "alert", "define_metric", "log_artifact", "use_artifact", *NEUTRAL})
"""Functions of the module that act on its current run."""
_OF_INIT: Final = frozenset({"name", "notes", "tags"})
_ONLY_REAL: Final = frozenset({"Api", "agent", "controller", "launch", "sweep", "plot", "apis"})


Audio, Config, Histogram, Html = WandbAudio, WandbConfig, WandbHistogram, WandbHtml
Image, Table, Video, Molecule, Object3D, Plotly = WandbImage, WandbTable, WandbVideo, WandbChart, WandbChart, WandbChart


class Artifact(NoArtifact):
    """Replaces an artifact, which is counted when it is logged and not recorded."""

    def __init__(self, *given: Any, **named: Any) -> None:
        del given, named


class AlertLevel(Enum):
    """Names the level of an alert."""

    INFO = "INFO"
    WARN = "WARN"
    ERROR = "ERROR"


class CompatSettings(SimpleNamespace):
    """Holds the settings of a run, as given."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.model_fields_set = set(given)


Settings = CompatSettings


class CompatRun:
    """Records one run; `init` begins it.

    Fourteen attributes, because most are those of ``wandb.Run`` that programs read and set.
    """

    def __init__(self, recording: WandbRecording, facts: RunFacts, config: WandbConfig, *, disabled: bool) -> None:
        self._recording, self._facts = recording, facts
        self.config, self.summary, self.disabled = config, recording.last, disabled
        self.start_time, self.starting_step, self.sweep_id = time.time(), recording.rows.step, None
        self.project_url = self.sweep_url = None
        self.name, self.notes, self.tags = facts.name, facts.notes, facts.tags
        self.offline = False
        object.__setattr__(config, "record", recording.config)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute. Trackers keep the first notes, tags and given name; a change of them is counted."""
        changed = name in _OF_INIT and name in self.__dict__
        if changed and not (name == "name" and rename(self._recording.run, value)):
            self._recording.not_captured(f"wandb.run.{name} =")
        object.__setattr__(self, name, tuple(value) if name == "tags" else value)

    @property
    def id(self) -> str:
        """Return the id under which other processes join."""
        return self._facts.id

    @property
    def project(self) -> str:
        """Return the project."""
        return self._facts.project

    @property
    def entity(self) -> str:
        """Return the entity, empty when none was given."""
        return self._facts.entity

    @property
    def group(self) -> str:
        """Return the group, empty when none was given."""
        return self._facts.group

    @property
    def job_type(self) -> str:
        """Return the kind of job, empty when none was given."""
        return self._facts.job_type

    @property
    def resumed(self) -> bool:
        """Return whether the run is resumed."""
        return self._facts.resumed

    @property
    def step(self) -> int:
        """Return the step of the next row without a step."""
        return self._recording.rows.step

    @property
    def path(self) -> str:
        """Return entity, project and id."""
        return self._facts.path

    @property
    def config_static(self) -> SimpleNamespace:
        """Return a copy of the config, whose entries are attributes."""
        return SimpleNamespace(**self.config)

    @property
    def settings(self) -> CompatSettings:
        """Return the settings by which the run was begun."""
        facts = self._facts
        return CompatSettings(
            run_id=facts.id, run_name=self.name, project=facts.project, entity=facts.entity, run_group=facts.group,
            run_job_type=facts.job_type, run_notes=self.notes, run_tags=self.tags, resumed=facts.resumed,
            mode="disabled" if self.disabled else "online", files_dir=self.dir, sync_dir=self.dir,
        )  # fmt: skip

    @property
    def url(self) -> str | None:
        """Return the run's page in a tracker, once it is known."""
        urls = self._recording.run.urls
        return urls.get("wandb") or next(iter(urls.values()), None)

    @property
    def dir(self) -> str:
        """Return a folder for files of the program, which stay on this machine."""
        return self._recording.folder()

    def log(self, data: Any = None, step: Any = None, commit: Any = None, sync: Any = None) -> None:
        """Record a row, by W&B's rules for *step* and *commit*."""
        del sync
        self._recording.log(data, step, commit)

    def alert(self, title: Any = "", text: Any = "", level: Any = None, wait_duration: Any = None) -> None:
        """Record an alert, at most one of a title in *wait_duration*; its level is ``info`` unless *level* is given."""
        self._recording.alert(title, text, level, wait_duration)

    def define_metric(self, name: str, step_metric: Any = None, *given: Any, **named: Any) -> WandbMetric:
        """Note the step metric of a key or glob, and the kinds of its summary."""
        metric = wandb_metric(name, step_metric, *given, **named)
        kinds = metric.summary or ()
        self._recording.define_metric(metric.name, metric.step_metric, kinds, overwrite=bool(metric.overwrite))
        return metric

    def log_artifact(self, *given: Any, **named: Any) -> NoArtifact:
        """Do nothing: the call has no counterpart, and is counted."""
        del given, named
        self._recording.not_captured("wandb.run.log_artifact")
        return NoArtifact()

    use_artifact = log_artifact

    def finish(self, exit_code: Any = None, **others: Any) -> None:
        """End the run."""
        del others
        self._recording.finish(exit_code)
        if _shown()["run"] is self:
            _shown().update(run=None, config=WandbConfig(), summary={})

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a method without a counterpart, which is counted."""
        if name not in NEUTRAL:
            raise AttributeError(f"wandb.run.{name}: expected a call of docs/capture.md, or the real wandb")

        def neutral(*given: Any, **named: Any) -> Any:
            del given, named
            self._recording.not_captured(f"wandb.run.{name}")
            return NEUTRAL[name]

        return neutral

    def __enter__(self) -> CompatRun:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            traceback.print_exception(kind, error, trace)
        self.finish(exit_code=int(kind is not None))


Run = CompatRun
run: CompatRun | None = None
config = WandbConfig()
summary: RecordedSummary | dict[str, Any] = {}


def init(  # noqa: PLR0917  # the order of W&B's arguments
    entity: str | None = None,
    project: str | None = None,
    dir: Any = None,  # noqa: A002
    id: str | None = None,  # noqa: A002
    name: str | None = None,
    notes: str | None = None,
    tags: Any = None,
    config: Any = None,
    **others: Any,
) -> CompatRun:
    """Begin a run, or return the current one, by W&B's rules for ``reinit``.

    Args:
        entity: W&B entity.
        project: Project.
        dir: No effect.
        id: Id of a run of another process, to join it.
        name: Run name.
        notes: Notes on the run.
        tags: Tags.
        config: Hyperparameters: a mapping, a namespace or the path of a YAML file.
        others: ``config_include_keys``, ``config_exclude_keys``, ``group``, ``job_type``, ``mode``, ``reinit``,
            ``resume``, ``resume_from``, ``fork_from``, ``settings``, ``sync_tensorboard``; W&B's other arguments have
            no effect.

    Raises:
        ArgumentError: W&B refuses an argument.
        TypeError: W&B has no such argument.
    """
    del dir
    given = {"entity": entity, "project": project, "id": id, "name": name, "notes": notes, "tags": tags, **others}
    given.setdefault("sync_tensorboard", others.get("tensorboard"))  # its older name
    asked = WandbArguments(given)
    check_arguments(asked, others)
    parsed = config_of_arguments(config, others.get("config_include_keys"), others.get("config_exclude_keys"))
    current = _shown()["run"]
    if current is not None and not asked.beside:
        if goes_on(current._recording, current._facts, asked):
            return cast("CompatRun", current)
        current.finish()
    disabled = chosen_mode(asked) == "disabled"
    recorded = nothing_recorded(environment(), Path()) if disabled else begin(asked)
    earlier = earlier_run(recorded) if asked.resumes else None
    recording, given = recording_of(recorded, asked, earlier), parsed
    if asked["sync_tensorboard"]:
        tensorboard.sync(recorded)
    shown = given if earlier is None else WandbConfig({**earlier.config, **given})
    facts = facts_of(recorded, asked, resumed=earlier is not None)
    begun = CompatRun(recording, facts, shown, disabled=disabled)
    recording.config(dict(given))
    if not asked.beside:
        _shown().update(run=begun, config=begun.config, summary=begun.summary)
    return begun


def finish(exit_code: Any = None, **others: Any) -> None:
    """End the current run; without one nothing happens."""
    del others
    current = _shown()["run"]
    if current is not None:
        current.finish(exit_code)


teardown = join = finish


def login(key: Any = None, **others: Any) -> bool:
    """Accept any key; nothing is sent or stored."""
    del key, others
    return True


def setup(settings: Any = None) -> None:
    """Return at once: a service process does not exist here."""
    del settings


def ensure_configured() -> None:
    """Do nothing: there is nothing to configure."""


def require(*features: Any, **named: Any) -> None:
    """Do nothing: there are no features to choose."""
    del features, named


def _generate_id(length: int = 8) -> str:
    return secrets.token_hex(length)[:length]


api = SimpleNamespace(api_key=os.environ.get("WANDB_API_KEY") or "otel-bridge")
util = SimpleNamespace(generate_id=_generate_id)
data_types = SimpleNamespace(
    Audio=Audio, Histogram=Histogram, Html=Html, Image=Image, Molecule=Molecule, Object3D=Object3D, Plotly=Plotly,
    Table=Table, Video=Video,
)  # fmt: skip
sdk = SimpleNamespace(
    lib=SimpleNamespace(
        config_util=SimpleNamespace(ConfigError=WandbConfigError), runid=SimpleNamespace(generate_id=_generate_id)
    )
)


class NotInCompatError(MissingExtraError, AttributeError):
    """Raised for names that only the real package has; `hasattr` is false for them."""


def __getattr__(name: str) -> Any:
    """Return a function of the current run.

    Raises:
        NotInCompatError: Only the real package has it.
        AttributeError: It is not a name of wandb's that programs use.
    """
    if name in _ONLY_REAL:
        raise NotInCompatError(f"wandb.{name} needs W&B's own package: pip install wandb, and `import wandb`")
    if name not in _OF_RUN:
        raise AttributeError(f"module 'otel_bridge.compat.wandb' has no attribute {name!r}: see docs/capture.md")

    def call(*given: Any, **named: Any) -> Any:
        current = _shown()["run"]
        if current is None:
            raise Error(f"You must call wandb.init() before wandb.{name}()")
        return getattr(current, name)(*given, **named)

    return call


def _shown() -> dict[str, Any]:
    """Return the names of this module, which show its current run."""
    return globals()
