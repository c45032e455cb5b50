"""Arguments and environment -> identity of the run, and the role of this process.

Order: argument, ``OTEL_BRIDGE_*``, ``OTEL_RESOURCE_ATTRIBUTES``, the trackers' own variables,
defaults. Pure, except for the four random digits of a generated name, which come from the kernel.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote

from otel_bridge import semconv
from otel_bridge.emit.config.run_request import MAX_NAME_CHARS, RunRequest
from otel_bridge.errors import ConfigError
from otel_bridge.records import run_id_of
from otel_bridge.settings import (
    GENERATED_NAME,
    GENERATED_PROJECT,
    LAUNCHER_NEW,
    NEW_RUN,
    NODE_RANK,
    PROJECT,
    ROLE,
    RUN_ID,
    RUN_NAME,
    Setting,
    non_negative_int,
    text,
)

_RESOURCE_ATTRIBUTES = Setting(
    "OTEL_RESOURCE_ATTRIBUTES", "", text, "Attributes of the resource."
)
_RANK = Setting("RANK", 0, non_negative_int, "Rank of this process.")
WORLD_SIZE = Setting(
    "WORLD_SIZE", 0, non_negative_int, "Number of processes of the job."
)
_NO_RANK: int | None = None
_NODE_RANKS = (
    NODE_RANK,
    Setting(
        "GROUP_RANK",
        _NO_RANK,
        non_negative_int,
        "Number of this machine, as torchrun sets it.",
    ),
    Setting(
        "SLURM_NODEID",
        _NO_RANK,
        non_negative_int,
        "Number of this machine, as Slurm sets it.",
    ),
)
# Characters that W&B accepts in an id, without those that a folder name cannot hold.
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_NEW_END = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")
"""Form of `new_end`."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Describes the run of this process, with its role and rank.

    Attributes:
        id: Run id.
        id_given: Whether the id was given, not made of project and name.
        rank: Number of this process among `world_size`.
        node_rank: Number of this machine.
        request: What the entry asked for, without its config, which may be large.
        resource: Further attributes of ``OTEL_RESOURCE_ATTRIBUTES``.
        project_generated: Whether the project is the working folder's name, because none was given.
        name_generated: Whether the name was generated, because none was given.
    """

    project: str
    name: str
    id: str
    id_given: bool
    role: str | None
    rank: int
    world_size: int
    node_rank: int
    request: RunRequest
    resource: Mapping[str, str] = field(default_factory=dict[str, str])
    project_generated: bool = False
    name_generated: bool = False

    @property
    def generated(self) -> tuple[str, ...]:
        """Generated names among ``project`` and ``run_name``, in the form of a segment header."""
        names: list[str] = []
        if self.project_generated:
            names.append("project")
        if self.name_generated:
            names.append("run_name")
        return tuple(names)

    def is_named(
        self,
        project: str | None = None,
        name: str | None = None,
        role: str | None = None,
        id: str | None = None,  # noqa: A002  # the word of `init()`
    ) -> bool:
        """Return whether names that a program gives lead to this run.

        A name that it does not give does. A name that was completed to begin a new run
        (``OTEL_BRIDGE_NEW_RUN``) leads to the run that it began: a loop that calls ``init()`` again
        means the same run.

        Raises:
            ConfigError: One of them cannot be a name.
        """
        own_names = {
            "project": ("", self.project),
            "name": ("", self.name, _first(("name", self.request.name))),
            "role": ("", self.role),
            "id": ("", self.id),
        }
        asked_names = {"project": project, "name": name, "role": role, "id": id}
        # Read as `identify` has read those of this run.
        return all(
            _first((key, asked_names[key])) in own_names[key] for key in asked_names
        )


def identify(
    request: RunRequest,
    env: Mapping[str, str],
    cwd: Path,
    *,
    launched: bool = False,
    script: str = "",
) -> Identity:
    """Determine the identity of the run; what nothing names is derived or generated.

    An id given to ``init()`` leaves a name that was generated for another run aside: the folder of
    the id may know its own.

    Args:
        request: What the entry asks for.
        env: The environment.
        cwd: The working folder.
        launched: Whether a launcher lives; then ``OTEL_*`` variables are intended for stock SDKs
            and not read.
        script: File whose name begins a generated one; empty: that of this process.

    Raises:
        ConfigError: A name, id or rank cannot be used.
    """
    resource = {} if launched else resource_attributes(env)
    project, project_generated = _project(request, env, resource, cwd)
    run_id = _first(
        ("id", request.id),
        (RUN_ID.name, RUN_ID.read(env)),
        (semconv.RUN_ID, resource.get(semconv.RUN_ID)),
    )
    name, name_generated = _given_name(request, env, resource)
    if name_generated and request.id is not None and run_id != RUN_ID.read(env):
        name = ""  # it was generated for another run
    # No other run has a name that was generated for this request.
    if not name or name != request.generated_name:
        name = _completed_name(
            name,
            run_id,
            env,
            launcher_end=LAUNCHER_NEW.read(env) if launched else "",
            script=script,
        )
    role = _first(
        ("role", request.role),
        (ROLE.name, ROLE.read(env)),
        (semconv.ROLE, resource.get(semconv.ROLE)),
    )
    rank, world_size = _rank(request.rank, env)
    return Identity(
        project=project,
        name=name,
        id=_checked_id(run_id or run_id_of(project, name)),
        id_given=bool(run_id),
        role=role or None,
        rank=rank,
        world_size=world_size,
        node_rank=node_rank(env),
        request=replace(request, config=None),
        resource={
            key: value for key, value in resource.items() if not key.startswith("rl.")
        },
        project_generated=project_generated,
        name_generated=name_generated,
    )


def _project(
    request: RunRequest, env: Mapping[str, str], resource: Mapping[str, str], cwd: Path
) -> tuple[str, bool]:
    """Return the project, and whether it counts as generated, as the working folder's name does.

    So does a project that a launcher or parent generated. A process that has only the id replaces a
    generated one by what its run folder knows.

    Raises:
        ConfigError: It cannot be a name.
    """
    project = _first(
        ("project", request.project),
        (PROJECT.name, PROJECT.read(env)),
        (semconv.PROJECT, resource.get(semconv.PROJECT)),
        ("WANDB_PROJECT", env.get("WANDB_PROJECT")),
        ("MLFLOW_EXPERIMENT_NAME", env.get("MLFLOW_EXPERIMENT_NAME")),
    )
    if not project:
        return cwd.name or "default", True
    return project, request.project is None and project == GENERATED_PROJECT.read(env)


def _given_name(
    request: RunRequest, env: Mapping[str, str], resource: Mapping[str, str]
) -> tuple[str, bool]:
    """Return the name of the run, empty where nothing gives it, and whether it counts as generated.

    A parent that began a new run of a name (``OTEL_BRIDGE_NEW_RUN``) leads to it children that ask for
    that name as it did.

    Raises:
        ConfigError: It cannot be a name.
    """
    asked_name = _first(("name", request.name))
    inherited_name = RUN_NAME.read(env)
    is_same_project = request.project in {None, PROJECT.read(env)}
    if asked_name and is_same_project and not NEW_RUN.read(env):
        beginning, _, end = inherited_name.partition(f"{asked_name}-")
        if not beginning and _NEW_END.fullmatch(end):
            return inherited_name, False
    name = _first(
        ("name", asked_name),
        ("name", request.generated_name),
        (RUN_NAME.name, inherited_name),
        (semconv.RUN_NAME, resource.get(semconv.RUN_NAME)),
        ("WANDB_NAME", env.get("WANDB_NAME")),
    )
    name = name or _job_name(env)
    generated = {GENERATED_NAME.read(env), request.generated_name}
    return name, not name or (request.name is None and name in generated)


def _completed_name(
    name: str, run_id: str, env: Mapping[str, str], *, launcher_end: str, script: str
) -> str:
    """Return *name* with what makes it that of a new run where one is asked for.

    A missing name is made: the run's id, else the script's name and the time.

    Args:
        name: The name that is given, or empty.
        run_id: The id that is given, or empty.
        env: The environment.
        launcher_end: End of the name of a new run, from ``otel-bridge run --new``; it applies to
            any name.
        script: See `identify`.
    """
    is_new = NEW_RUN.read(env)
    if run_id and not name and not is_new:
        return run_id  # the same in every process that knows only the id
    if is_new or not name:
        return f"{name or _script_name(script)}-{launcher_end or new_end()}"
    if launcher_end and not name.endswith(launcher_end):
        return f"{name}-{launcher_end}"
    return name


def new_name() -> str:
    """Return a name that no other run has: the script's, and the time."""
    return f"{_script_name()}-{new_end()}"


def new_end() -> str:
    """Return the end of a new run's name: UTC time and four random digits."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.urandom(2).hex()}"


def node_rank(env: Mapping[str, str]) -> int:
    """Return the number of this machine in the job, 0 where nothing says it.

    Raises:
        ConfigError: A variable is not a number.
    """
    for setting in _NODE_RANKS:
        number = setting.read(env)
        if number is not None:
            return number
    return 0


def resource_attributes(env: Mapping[str, str]) -> dict[str, str]:
    """Parse ``OTEL_RESOURCE_ATTRIBUTES``.

    Entries that are not ``key=value`` are ignored, as in SDKs.
    """
    attributes: dict[str, str] = {}
    for item in _RESOURCE_ATTRIBUTES.read(env).split(","):
        key, equals, value = item.partition("=")
        if equals and key.strip():
            attributes[key.strip()] = unquote(value.strip())
    return attributes


def _first(*sources: tuple[str, object]) -> str:
    """Return the first non-empty source, as text that can be a name; empty without one.

    Raises:
        ConfigError: It is not a text, too long, or not printable.
    """
    for source, value in sources:
        if value is None:
            continue
        # First: an array cannot be compared with a text.
        if not isinstance(value, str):
            raise ConfigError(
                f"{source}={value!r}: a {type(value).__name__}, expected text"
            )
        if not value:
            continue
        # os.environ has half surrogate pairs for bytes that are not UTF-8.
        cleaned = value.encode("utf-8", "replace").decode().strip()
        if not cleaned or len(cleaned) > MAX_NAME_CHARS or not cleaned.isprintable():
            raise ConfigError(
                f"{source}={value[:80]!r}: expected 1 to {MAX_NAME_CHARS} printable characters"
            )
        return cleaned
    return ""


def _checked_id(run_id: str) -> str:
    """Return *run_id*, which becomes the name of a folder and an id of W&B.

    Raises:
        ConfigError: It cannot be both.
    """
    if not _RUN_ID.fullmatch(run_id):
        raise ConfigError(
            f"run id {run_id!r}: expected 1 to 128 of A-Z a-z 0-9 . _ - beginning with a letter or digit"
        )
    return run_id


def _job_name(env: Mapping[str, str]) -> str:
    """Return the job's own name when all its processes share that name, else empty.

    Raises:
        ConfigError: It cannot be a name.
    """
    elastic = env.get("TORCHELASTIC_RUN_ID", "")
    if elastic and elastic != "none":  # torchrun's default, the same for every job
        return _first(("TORCHELASTIC_RUN_ID", elastic))
    # All scripts of an interactive allocation share one SLURM_JOB_ID; slurmstepd marks batch jobs
    # (src/common/env.c).
    if env.get("ENVIRONMENT") == "BATCH" and env.get("SLURM_JOB_ID"):
        return _first(("SLURM_JOB_ID", env["SLURM_JOB_ID"]))
    return ""


def _script_name(script: str = "") -> str:
    """Return the name of *script*, by default that of this process, as a part of a run's name.

    ``python`` where there is none, as in an interactive session.
    """
    stem = Path(script or "".join(sys.argv[:1])).stem
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-.")
    return cleaned[:64] or "python"


def _rank(explicit_rank: int | None, env: Mapping[str, str]) -> tuple[int, int]:
    """Return rank and world size.

    A size below the rank counts as the rank's own, since srun sets no size.

    Raises:
        ConfigError: The rank, or a variable of the two, is not an integer of 0 or more.
    """
    if explicit_rank is None:
        rank = _RANK.read(env)
    elif not isinstance(explicit_rank, int) or explicit_rank < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"rank={explicit_rank!r}: expected an integer of 0 or more")
    else:
        rank = int(explicit_rank)
    return rank, max(WORLD_SIZE.read(env), rank + 1)
