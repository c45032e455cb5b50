"""The calls of wandb that training programs make, without wandb: ``import otel_bridge.compat.wandb as wandb``.

They become what the capture makes of the real package. What only W&B itself can do, such as ``Api``, raises an error
that names the package.
"""

from __future__ import annotations

import os
import secrets
import traceback
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

from otel_bridge.capture import hook
from otel_bridge.capture.process_runs import rename
from otel_bridge.capture.wandb.arguments import RunFacts, WandbArguments, begin, facts_of, goes_on
from otel_bridge.capture.wandb.earlier import earlier_run
from otel_bridge.capture.wandb.recording import RecordedSummary, WandbRecording
from otel_bridge.capture.wandb.run import NEUTRAL, NoArtifact
from otel_bridge.compat.objects import (
    WandbAudio,
    WandbChart,
    WandbConfig,
    WandbHistogram,
    WandbHtml,
    WandbImage,
    WandbTable,
    WandbVideo,
)
from otel_bridge.emit.startup import nothing_recorded
from otel_bridge.errors import ConfigError, MissingExtraError
from otel_bridge.metric_summaries import NO_SUMMARY, SUMMARY_KINDS
from otel_bridge.settings import environment

__version__: Final = "0.31.0"
"""Version of wandb whose calls these are."""
__all__ = [
    "AlertLevel", "Artifact", "Audio", "CommError", "Config", "Error", "Histogram", "Html", "Image", "Molecule",
    "Object3D", "Plotly", "Run", "Settings", "Table", "UsageError", "Video", "api", "config", "finish", "init", "login",
    "require", "run", "sdk", "setup", "summary", "teardown", "util",
]  # fmt: skip
_OF_RUN: Final = frozenset({"log", "alert", "define_metric", "log_artifact", "use_artifact", *NEUTRAL})
"""Functions of the module that act on its current run."""
_OF_INIT: Final = frozenset({"name", "notes", "tags"})
_ONLY_REAL: Final = frozenset({"Api", "agent", "controller", "launch", "sweep", "plot", "apis"})


Audio, Config, Histogram, Html = WandbAudio, WandbConfig, WandbHistogram, WandbHtml
Image, Table, Video, Molecule, Object3D, Plotly = WandbImage, WandbTable, WandbVideo, WandbChart, WandbChart, WandbChart


class Artifact(NoArtifact):
    """An artifact, which is counted when it is logged and not recorded."""

    def __init__(self, *given: Any, **named: Any) -> None:
        del given, named


class Error(Exception):
    """Base of W&B's errors."""


class UsageError(Error):
    """Raised by W&B for a call that cannot be used."""


class CommError(Error):
    """Raised by W&B when its server cannot be reached; never here."""


class AlertLevel(Enum):
    """Level of an alert."""

    INFO = "INFO"
    WARN = "WARN"
    ERROR = "ERROR"


class CompatSettings(SimpleNamespace):
    """Settings of a run, as given."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.model_fields_set = set(given)


Settings = CompatSettings


class CompatRun:
    """One run; `init` begins it."""

    def __init__(self, recording: WandbRecording, facts: RunFacts, config: WandbConfig, *, disabled: bool) -> None:
        self._recording, self._facts = recording, facts
        self.config, self.summary, self.disabled = config, recording.last, disabled
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
        """Record an alert; as in W&B, it informs unless *level* says otherwise."""
        del wait_duration
        self._recording.alert(title, text, level)

    def define_metric(self, name: str, step_metric: str | None = None, **others: Any) -> None:
        """Note the step metric of a key or glob, and the kinds of its summary."""
        kinds = [kind for kind in str(others.get("summary") or "").lower().split(",") if kind]
        if wrong := [kind for kind in kinds if kind not in {*SUMMARY_KINDS, NO_SUMMARY, "copy"}]:
            raise Error(f"Unhandled define_metric() arg: summary op: {wrong[0]}")
        self._recording.define_metric(name, step_metric, kinds, overwrite=bool(others.get("overwrite")))

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
        others: ``group``, ``job_type``, ``mode``, ``reinit``, ``resume``, ``settings``, ``sync_tensorboard``; any other
            argument has no effect.
    """
    del dir
    given = {"entity": entity, "project": project, "id": id, "name": name, "notes": notes, "tags": tags, **others}
    asked = WandbArguments(given)
    current = _shown()["run"]
    if current is not None and not asked.beside:
        if goes_on(current._recording, current._facts, asked):
            return cast("CompatRun", current)
        current.finish()
    if asked["sync_tensorboard"]:
        hook.capture("tensorboard", mode="replace")
    disabled = (asked["mode"] or os.environ.get("WANDB_MODE")) == "disabled"
    recorded = nothing_recorded(environment(), Path()) if disabled else begin(asked)
    earlier = earlier_run(recorded) if asked.resumes else None
    recording, given = WandbRecording(recorded, earlier), _config_of(config)
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


teardown = finish


def login(key: Any = None, **others: Any) -> bool:
    """Accept any key; nothing is sent or stored."""
    del key, others
    return True


def setup(settings: Any = None) -> None:
    """Return at once: a service process does not exist here."""
    del settings


def require(*features: Any, **named: Any) -> None:
    """Do nothing: there are no features to choose."""
    del features, named


def _generate_id(length: int = 8) -> str:
    return secrets.token_hex(length)[:length]


api = SimpleNamespace(api_key=os.environ.get("WANDB_API_KEY") or "otel-bridge")
util = SimpleNamespace(generate_id=_generate_id)
sdk = SimpleNamespace(lib=SimpleNamespace(runid=SimpleNamespace(generate_id=_generate_id)))


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


def _config_of(given: Any) -> WandbConfig:
    if isinstance(given, str | os.PathLike):
        return WandbConfig(_read_yaml(Path(cast("str", given))))
    if given is None:
        return WandbConfig()
    if isinstance(given, Mapping):
        return WandbConfig(cast("Mapping[str, Any]", given))
    return WandbConfig(cast("dict[str, Any]", vars(given)))


def _read_yaml(path: Path) -> dict[str, Any]:
    """Return the entries of a config file of W&B, whose values may be below ``value``."""
    try:
        import yaml  # type: ignore[import-untyped, unused-ignore]  # noqa: PLC0415  # only for programs with such a file

        read: Any = yaml.safe_load(path.read_text("utf-8"))
    except Exception as exc:
        raise ConfigError(f"config={os.fspath(path)!r}: {exc}; expected a YAML file of hyperparameters") from exc
    entries = cast("dict[str, Any]", read if isinstance(read, dict) else {})
    return {
        key: value["value"] if isinstance(value, dict) and "value" in value else value
        for key, value in entries.items()
        if key != "wandb_version"
    }
