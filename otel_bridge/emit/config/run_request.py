"""Defines what an entry asks of the process's runs: ``init()``, a captured tracker, an adapter of a framework."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from otel_bridge.errors import ConfigError
from otel_bridge.settings import (
    GENERATED_NAME,
    GENERATED_PROJECT,
    PROJECT,
    RUN_NAME,
    Setting,
)
from otel_bridge.values.scalars import any_text, name_of

MAX_NAME_CHARS = 256
"""Longest name of a run, project or role."""

_TEXTS = ("group", "notes", "entity", "job_type")
_ATTRIBUTES = (*_TEXTS, "tags", "rank", "system_metrics")
_NO_NAMES = (None, None, None, None)
_GENERATED = {PROJECT.name: GENERATED_PROJECT, RUN_NAME.name: GENERATED_NAME}
"""Variable that names a run to the one that holds a generated name."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Holds the arguments of ``init()``, and which front end asks; ``None``: not given.

    A group, notes and the like that are not texts are their text: a number, a path, an enum.

    Attributes:
        captured: Package whose calls begin the run, instead of ``init()``.
        leaves_open_runs: Whether an open run of *captured* with other names goes on. So it does of a
            package that finishes a thread's earlier run by itself: one that is open is another
            thread's.
        adapter: Framework whose adapter begins the run, instead of ``init()``.
        resume: What W&B does with an existing run of its id, as its ``WANDB_RESUME``.
        generated_name: Name of a run that is another one than the process's; it counts as
            generated.

    Raises:
        ConfigError: The tags are not texts.
    """

    project: str | None = None
    name: str | None = None
    role: str | None = None
    id: str | None = None
    group: str | None = None
    tags: Sequence[str] = ()
    notes: str | None = None
    entity: str | None = None
    job_type: str | None = None
    resume: str | None = None
    rank: int | None = None
    system_metrics: bool = False
    exporters: object = None
    dir: object = None
    config: object = None
    otel: bool = False
    handle: bool = False
    captured: str | None = None
    leaves_open_runs: bool = False
    adapter: str | None = None
    generated_name: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tags", _tags_of(self.tags))
        for name in _TEXTS:
            value: object = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, any_text(value))
        object.__setattr__(self, "system_metrics", bool(self.system_metrics))

    @property
    def attributes(self) -> dict[str, object]:
        """Return the attributes of a run that this request gives; a rank of 0 counts as not given.

        They do not decide which run it is.
        """
        attributes: dict[str, object] = {}
        for name in _ATTRIBUTES:
            value = getattr(self, name)
            if value not in (None, (), False):
                attributes[name] = value
        return attributes

    @property
    def is_open(self) -> bool:
        """Return whether this request fits any run: it gives no names, attributes or exporters."""
        return (
            not self.attributes
            and self.exporters is None
            and (self.project, self.name, self.role, self.id) == _NO_NAMES
        )


def usable_name(name: object) -> str | None:
    """Return a name of a tracker or framework, which accept any text, as a run can have it.

    It loses what cannot be printed. The end of a longer one is a digest, so that two names remain
    two runs. ``None`` for an empty one.
    """
    if name is None:
        return None
    printable = "".join(filter(str.isprintable, any_text(name)))
    return name_of(printable.strip(), MAX_NAME_CHARS)


def is_chosen(setting: Setting[str], env: Mapping[str, str]) -> bool:
    """Return whether the user chose the value of *setting*, a name or id of a run.

    A generated name is not chosen, although a launcher or parent process has set it.
    """
    value = setting.read(env)
    generated = _GENERATED.get(setting.name)
    return bool(value) and (generated is None or value != generated.read(env))


def texts_of(value: object) -> tuple[str, ...] | None:
    """Return the texts of an argument that may be one text or several; ``None`` when it is neither.

    A list with anything else in it is neither: the caller raises an error that shows it.
    """
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Sequence | set | frozenset):
        texts = tuple(cast("Iterable[object]", value))
        if all(isinstance(text, str) for text in texts):
            return cast("tuple[str, ...]", texts)
    return None


def _tags_of(tags: object) -> tuple[str, ...]:
    """Return the tags given to ``init()``: one text, or several.

    Raises:
        ConfigError: *tags* is neither.
    """
    texts = texts_of(() if tags is None else tags)
    if texts is not None:
        return texts
    raise ConfigError(f"tags={tags!r}: expected texts")
