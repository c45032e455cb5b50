"""Identity and environment -> the bytes of the process's ``Resource``, without credentials.

Source: opentelemetry-proto, resource.proto, ``Resource.attributes`` (field 1).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from otel_bridge import semconv
from otel_bridge.emit.config.identity import Identity
from otel_bridge.emit.encode.protobuf import Attribute, attributes
from otel_bridge.settings import ATTEMPT, RANKS, Setting, non_negative_int
from otel_bridge.text.secret_patterns import redact_text
from otel_bridge.values.mappings import present

# A service reads the trackers' identity only from here: the service's own environment belongs to
# another job.
_TRACKER_VARIABLES = {
    semconv.WANDB_RUN_ID: "WANDB_RUN_ID",
    semconv.WANDB_ENTITY: "WANDB_ENTITY",
    semconv.WANDB_PROJECT: "WANDB_PROJECT",
    semconv.WANDB_GROUP: "WANDB_RUN_GROUP",
    semconv.WANDB_TAGS: "WANDB_TAGS",
    semconv.WANDB_NOTES: "WANDB_NOTES",
    semconv.WANDB_JOB_TYPE: "WANDB_JOB_TYPE",
    semconv.WANDB_RESUME: "WANDB_RESUME",
    semconv.WANDB_SWEEP_ID: "WANDB_SWEEP_ID",
    semconv.MLFLOW_RUN_ID: "MLFLOW_RUN_ID",
    semconv.MLFLOW_EXPERIMENT: "MLFLOW_EXPERIMENT_NAME",
    semconv.TRACKIO_PROJECT: "TRACKIO_PROJECT",
    semconv.TRACKIO_SPACE: "TRACKIO_SPACE_ID",
}

_NO_COUNT: int | None = None
# Both count from 0: the first start has had no restart.
RESTARTS = (
    Setting(
        "TORCHELASTIC_RESTART_COUNT",
        _NO_COUNT,
        non_negative_int,
        "Restarts, as torchrun counts them.",
    ),
    Setting(
        "SLURM_RESTART_COUNT",
        _NO_COUNT,
        non_negative_int,
        "Restarts, as Slurm counts them.",
    ),
)


def tracker_identity(identity: Identity, env: Mapping[str, str]) -> dict[str, str]:
    """Return the trackers' identity, attribute to value, as found in *env* or given to ``init()``.

    Free texts (notes, tags) are redacted; ids and names stay, or the tracker would open another
    run.
    """
    values: dict[str, str] = {}
    for attribute, name in _TRACKER_VARIABLES.items():
        value = env.get(name)
        if value:
            is_free = attribute in semconv.FREE_TEXTS
            values[attribute] = redact_text(value) if is_free else value
    if identity.request.entity:
        values[semconv.WANDB_ENTITY] = identity.request.entity
    if identity.request.resume:
        values[semconv.WANDB_RESUME] = identity.request.resume
    return values


def is_trial(env: Mapping[str, str]) -> bool:
    """Return whether *env* is that of a trial of a W&B sweep, whose run ends with its own processes."""
    return bool(env.get(_TRACKER_VARIABLES[semconv.WANDB_SWEEP_ID]))


def merges_ranks(world_size: int, env: Mapping[str, str]) -> bool:
    """Return whether rows of all ranks become one row a step."""
    return world_size > 1 and RANKS.read(env) == "merge"


def encode_resource(
    identity: Identity,
    env: Mapping[str, str],
    instance_id: str,
    *,
    source: Mapping[str, str] | None = None,
    forked: bool = False,
    started_unix_ns: int | None = None,
) -> bytes:
    """Encode the resource of one process; attributes without a value are left out.

    The identity of the run comes after attributes of the program's own, which must not replace it.

    Args:
        identity: Run and role.
        env: Environment with the trackers' identity.
        instance_id: Id of this process, new in a fork.
        source: Source of the process, attribute to value; ``OTEL_RESOURCE_ATTRIBUTES`` takes
            precedence.
        forked: Whether the process is a forked child.
        started_unix_ns: Time at which this process joined the run.

    Raises:
        ConfigError: A variable with the attempt is not a number. `check_settings` has refused it
            when the run began.
    """
    arguments = identity.request
    values: dict[str, Attribute] = {
        **(source or {}),
        **identity.resource,
        semconv.SERVICE_NAME: _service_name(identity, env),
        semconv.PROJECT: identity.project,
        semconv.RUN_NAME: identity.name,
        semconv.RUN_ID: identity.id,
        semconv.PROJECT_GENERATED: identity.project_generated or None,
        semconv.RUN_NAME_GENERATED: identity.name_generated or None,
        semconv.ROLE: identity.role,
        semconv.RANK: identity.rank,
        semconv.WORLD_SIZE: identity.world_size,
        semconv.RANKS: RANKS.read(env)
        if merges_ranks(identity.world_size, env)
        else None,
        semconv.NODE_RANK: identity.node_rank,
        semconv.INSTANCE_ID: instance_id,
        semconv.INSTANCE_START: started_unix_ns,
        semconv.RUN_GROUP: _redacted(arguments.group),
        semconv.RUN_TAGS: [redact_text(tag) for tag in arguments.tags] or None,
        semconv.RUN_NOTES: _redacted(arguments.notes),
        semconv.RUN_JOB_TYPE: _redacted(arguments.job_type),
        semconv.CAPTURED: arguments.captured,
        semconv.FORKED: forked or None,
        semconv.ATTEMPT: _attempt(env),
        **tracker_identity(identity, env),
    }
    return attributes(1, values.items())


def _service_name(identity: Identity, env: Mapping[str, str]) -> str:
    """Return the service of the process: as the variables of OpenTelemetry name it, else its role or project."""
    explicit_name = env.get("OTEL_SERVICE_NAME") or identity.resource.get(
        semconv.SERVICE_NAME
    )
    return explicit_name or identity.role or identity.project


def _redacted(text: str | None) -> str | None:
    return None if text is None else redact_text(text)


def _attempt(env: Mapping[str, str]) -> int | None:
    """Return the attempt of the job, from 1, when the environment names it.

    Else ``None``, and the bridge counts attempts.

    Raises:
        ConfigError: It is not a number.
    """
    attempt = ATTEMPT.read(env)
    if attempt is not None:
        return attempt
    for setting in RESTARTS:
        restarts = setting.read(env)
        if restarts is not None:
            return restarts + 1
    return None


# Source of a process: host, script, user and the commit of its repository. Reads three small files,
# starts nothing.
#
# Source: OpenTelemetry semantic conventions (host, process, vcs); gitrepository-layout(5).

_REVISION = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_FILE_BYTES = 1 << 20


def source_of(env: Mapping[str, str], cwd: Path) -> dict[str, str]:
    """Return the known facts of this process's source, attribute to value.

    Unknown ones are left out.

    Args:
        env: Environment with the user's name.
        cwd: Working folder; its repository counts when the script has none.
    """
    if sys.argv and sys.argv[0] not in {"", "-", "-c", "-m"}:
        script = sys.argv[0]
    else:
        script = ""
    directory = (cwd / script).parent if script else cwd
    facts = {
        semconv.HOST_NAME: os.uname().nodename or None,
        semconv.PROCESS_COMMAND: script or None,
        semconv.PROCESS_OWNER: env.get("USER") or env.get("LOGNAME") or None,
        semconv.VCS_REVISION: revision_of(directory) or revision_of(cwd),
    }
    return present(facts)


def revision_of(folder: Path) -> str | None:
    """Return the checked-out commit of the repository around *folder*, ``None`` outside a repository.

    ``None`` as well when its files cannot be read. By hand, since starting git would cost the
    trainer a process.
    """
    try:
        inside = Path(os.path.realpath(folder))
        for parent in (inside, *inside.parents):
            git = parent / ".git"
            if git.is_dir():
                return _head(git, git)
            if git.is_file():  # a worktree or submodule: the folder is elsewhere
                real = parent / _read(git).removeprefix("gitdir:").strip()
                common = real / "commondir"
                return _head(
                    real, real / _read(common).strip() if common.is_file() else real
                )
    except (OSError, UnicodeDecodeError, ValueError):
        pass
    return None


def _head(git: Path, common: Path) -> str | None:
    """Return the commit that HEAD names, directly or by its branch.

    ``None`` when there is none yet. What reading a file raises is raised; `revision_of` then
    returns ``None``.
    """
    head = _read(git / "HEAD").strip()
    if not head.startswith("ref:"):
        return _checked(head)
    reference = head.removeprefix("ref:").strip()
    # A worktree has its own HEAD; its branches lie in the folder that all worktrees share.
    for folder in (git, common):
        if (folder / reference).is_file():
            return _checked(_read(folder / reference).strip())
    packed = common / "packed-refs"
    for line in _read(packed).splitlines() if packed.is_file() else ():
        revision, _, name = line.partition(" ")
        if name.strip() == reference:
            return _checked(revision)
    return None


def _checked(revision: str) -> str | None:
    if _REVISION.fullmatch(revision):
        return revision
    return None


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_FILE_BYTES).decode()
