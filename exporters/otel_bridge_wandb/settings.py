"""Reads the settings of W&B from its own variables, without importing it. The API key is never read here.

Source: ``Settings`` in wandb/sdk/wandb_settings.py; ``WANDB_MODE`` also knows ``dryrun`` and
``run``, its old names.
"""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from otel_bridge import semconv
from otel_bridge.errors import ConfigError
from otel_bridge.exporter import RunInfo
from otel_bridge.setting_parsers import absolute_path, http_parts
from otel_bridge.settings import (
    FEATURED,
    Setting,
    one_of,
    positive_int,
    positive_seconds,
    seconds,
)
from otel_bridge.text.addresses import without_credentials
from otel_bridge.values.mappings import present
from otel_bridge_wandb.shared_mode import settings as shared_mode
from otel_bridge_wandb.shared_mode.settings import Sharing

_log = logging.getLogger("otel_bridge.wandb")
_MODES = {
    "": "online",
    "online": "online",
    "run": "online",
    "offline": "offline",
    "dryrun": "offline",
}
# The characters that wandb refuses in the name of a project.
_ILLEGAL_IN_PROJECT = re.compile(r"[/\\#?%:]")
# Limit of wandb's own check of a project's name (wandb_settings.py, 0.31).
_PROJECT_CHARS = 128
DEFAULT_APP_URL = "https://wandb.ai"

RESUMES = ("allow", "must", "never", "auto")
RESUME = Setting(
    "WANDB_RESUME",
    "allow",
    one_of(*RESUMES),
    "What to do with a W&B run of the same id: allow, must, never or auto.",
)
INIT_TIMEOUT_S = Setting(
    "OTEL_BRIDGE_WANDB_INIT_TIMEOUT_S", 30.0, seconds, "Time limit for opening a run."
)
FINISH_TIMEOUT_S = Setting(
    "OTEL_BRIDGE_WANDB_FINISH_TIMEOUT_S",
    20.0,
    seconds,
    "Time limit for ending a run; at least 1.",
)
STALL_S = Setting(
    "OTEL_BRIDGE_WANDB_STALL_S",
    120.0,
    positive_seconds,
    "Time without a new line on a server that answers, after which the upload counts as dead and the run is reopened.",
)
POLL_S = Setting(
    "OTEL_BRIDGE_WANDB_POLL_S",
    5.0,
    positive_seconds,
    "Interval at which the bridge asks the server how many lines it holds.",
)
TRANSMIT_S = Setting(
    "OTEL_BRIDGE_WANDB_TRANSMIT_S",
    15,
    positive_int,
    "Seconds between two uploads of rows, an integer.",
)
MAX_LINES = Setting(
    "OTEL_BRIDGE_WANDB_MAX_LINES",
    50_000,
    positive_int,
    "Most rows that wait for the server's confirmation before more rows are sent.",
)
CELL_CHARS = Setting(
    "OTEL_BRIDGE_WANDB_CELL_CHARS",
    20_000,
    positive_int,
    "Longest text in one cell of the table of rollouts.",
)
SETTINGS = (
    INIT_TIMEOUT_S, FINISH_TIMEOUT_S, STALL_S, POLL_S, TRANSMIT_S, MAX_LINES, CELL_CHARS, *shared_mode.SETTINGS,
    RESUME,
)  # fmt: skip
"""Settings of this exporter, for ``otel-bridge doctor``."""


@dataclass(frozen=True, slots=True)
class UploadLimits:
    """Holds times and limits of uploads; see the settings of the same names."""

    init_timeout_s: float = INIT_TIMEOUT_S.default
    finish_timeout_s: float = FINISH_TIMEOUT_S.default
    stall_s: float = STALL_S.default
    poll_s: float = POLL_S.default
    transmit_s: int = TRANSMIT_S.default
    max_lines: int = MAX_LINES.default
    cell_chars: int = CELL_CHARS.default

    @classmethod
    def read(cls, env: Mapping[str, str]) -> UploadLimits:
        """Read the limits from *env*; raises `ConfigError`."""
        return cls(
            init_timeout_s=INIT_TIMEOUT_S.read(env),
            # wandb reads 0 as no limit, and no doubling of it (`UploadTimeouts`) is longer.
            finish_timeout_s=max(FINISH_TIMEOUT_S.read(env), 1.0),
            stall_s=STALL_S.read(env),
            poll_s=POLL_S.read(env),
            transmit_s=TRANSMIT_S.read(env),
            max_lines=MAX_LINES.read(env),
            cell_chars=CELL_CHARS.read(env),
        )


@dataclass(frozen=True, slots=True)
class WandbSettings:
    """Holds the settings of one W&B server or local folder.

    Attributes:
        offline: Whether ``WANDB_MODE`` is ``offline``.
        base_url: ``WANDB_BASE_URL``; empty for wandb's default.
        directory: ``WANDB_DIR``, absolute; ``None`` for the run's own folder.
        entity: ``WANDB_ENTITY``; empty for the default of the API key.
        resume: ``WANDB_RESUME``.
        limits: Times and limits of uploads.
        sharing: Sharing of the run with other machines; ``None`` when it has one writer.
        unshared: Whether sharing was requested and is not possible, so that each machine has its
            own run, in one group.
        featured: Keys of the saved view.
    """

    offline: bool = False
    base_url: str = ""
    directory: Path | None = None
    entity: str = ""
    resume: str = RESUME.default
    limits: UploadLimits = UploadLimits()
    sharing: Sharing | None = None
    unshared: bool = False
    featured: tuple[str, ...] = ()

    @classmethod
    def from_environment(cls, env: Mapping[str, str], cwd: Path) -> WandbSettings:
        """Read the settings; a relative folder is relative to *cwd*.

        Raises:
            ConfigError: ``WANDB_MODE`` is ``disabled``, ``shared`` or unknown, a value cannot be
                parsed, or the home in ``WANDB_DIR`` is not known.
        """
        base_url = env.get("WANDB_BASE_URL", "").strip().rstrip("/")
        if base_url and http_parts(base_url) is None:
            raise ConfigError(
                f"WANDB_BASE_URL={without_credentials(base_url)!r}: expected http(s)://HOST[:PORT]; unset it for "
                "W&B's own server"
            )
        offline = _mode(env) == "offline"
        shared = Sharing.read(env)
        directory = env.get("WANDB_DIR", "").strip()
        root: Path | None = None
        if directory:
            root = absolute_path("WANDB_DIR", directory, cwd)
        return cls(
            offline=offline,
            base_url=base_url,
            directory=root,
            entity=env.get("WANDB_ENTITY", "").strip(),
            resume=RESUME.read(env),
            limits=UploadLimits.read(env),
            # wandb's mode is one setting: an offline writer cannot share.
            sharing=None if offline else shared,
            unshared=offline and shared is not None,
            featured=FEATURED.read(env),
        )

    @property
    def destination(self) -> Mapping[str, str]:
        """Return the variables that define the destination, without unset ones.

        Offline the folder is the destination and the server is not; online it is the reverse: files
        in the folder are copies of what the server gets.
        """
        variables = {
            "WANDB_MODE": "offline" if self.offline else "online",
            "WANDB_BASE_URL": None if self.offline else self.base_url or None,
            "WANDB_DIR": str(self.directory)
            if self.offline and self.directory
            else None,
            "WANDB_ENTITY": self.entity or None,
            shared_mode.SHARED.name: "1" if self.sharing or self.unshared else None,
        }
        return present(variables)

    @property
    def caution(self) -> str:
        """Return a warning if an offline run was requested to be shared, which it cannot be; else empty."""
        if not self.unshared:
            return ""
        return "wandb: an offline run cannot be shared, each machine writes one of its own, all in one group"

    def view(self, run: RunInfo) -> str:
        """Return the folder of offline runs, or the page of an online one; empty without an entity.

        The key's own entity is known only to the server. The writer reports the page once it has
        opened the run.
        """
        if self.offline:
            return str(self.root(run) / "wandb")
        entity = entity_of(run, self)
        if not entity:
            return ""
        names = (entity, project_of(run), "runs", run_id_of(run, self))
        path = [quote(name, safe="") for name in names]
        return "/".join((_app_url(self.base_url), *path))

    def upload(self, run: RunInfo) -> str:
        """Return the command that uploads an offline run; empty for an online one."""
        if not self.offline:
            return ""
        folder = shlex.quote(str(self.root(run) / "wandb"))
        return f"wandb sync {folder}/offline-run-*-{run_id_of(run, self)}*"

    def root(self, run: RunInfo) -> Path:
        """Return the folder below which wandb makes its own folder ``wandb``."""
        return self.directory or run.folder


def _app_url(base_url: str) -> str:
    """Return the address of the pages of the server *base_url*, without credentials.

    Source: ``api_to_app_url`` in wandb/util.py (0.31).
    """
    if not base_url:
        return DEFAULT_APP_URL
    address = without_credentials(base_url)
    if "://api.wandb." in address:
        return address.replace("://api.", "://", 1)
    return address.replace("://api.", "://app.", 1)


def _mode(env: Mapping[str, str]) -> str:
    """Return ``online`` or ``offline``.

    Raises:
        ConfigError: ``WANDB_MODE`` is disabled, shared or unknown. A bridge that wrote nothing
            would hide a mistake.
    """
    raw = env.get("WANDB_MODE", "").strip().lower()
    if raw == "disabled":
        raise ConfigError(
            "WANDB_MODE=disabled: the exporter wandb would write nothing; leave it out of the exporters or choose none"
        )
    if raw == "shared":
        raise ConfigError(
            "WANDB_MODE=shared: the bridge is the one writer of its run; expected online or offline. "
            f"Machines without a common bridge share a run with {shared_mode.SHARED.name}=1"
        )
    if raw not in _MODES:
        raise ConfigError(
            f"WANDB_MODE={raw!r}: expected online or offline; unset it to use the default, 'online'"
        )
    return _MODES[raw]


def has_own_run(run: RunInfo, settings: WandbSettings) -> bool:
    """Return whether this machine writes a W&B run of its own beside the run of the job's first machine.

    Two unshared writers of one W&B run lose rows. A job whose data one endpoint collects (not
    `local`) has one bridge, and one run, for all machines.
    """
    return settings.sharing is None and run.local and run.node_rank > 0


def run_id_of(run: RunInfo, settings: WandbSettings) -> str:
    """Return the W&B run id: the producer's ``WANDB_RUN_ID``, else the run's id.

    Each further machine has its own.
    """
    run_id = run.identity.get(semconv.WANDB_RUN_ID) or run.id
    if has_own_run(run, settings):
        return f"{run_id}-n{run.node_rank}"
    return run_id


def group_of(run: RunInfo, settings: WandbSettings) -> str | None:
    """Return the group: the user's, else, for the runs of several machines, the id of their common run.

    ``None`` for the one run of a job without a group.
    """
    alone = not has_own_run(run, settings) and not settings.unshared
    # W&B shows a sweep as such.
    is_sweep = run.group == sweep_of(run)
    group = None if is_sweep else run.group
    return group or run.identity.get(semconv.WANDB_GROUP) or (None if alone else run.id)


def sweep_of(run: RunInfo) -> str | None:
    """Return the sweep that the run is a trial of: the producer's ``WANDB_SWEEP_ID``."""
    return run.identity.get(semconv.WANDB_SWEEP_ID, "").strip() or None


def project_of(run: RunInfo) -> str:
    """Return the W&B project: the producer's ``WANDB_PROJECT``, else the run's, without characters that W&B refuses.

    Such a name would keep the run from opening, and rows with a changed name are better than none.
    """
    project = run.identity.get(semconv.WANDB_PROJECT) or run.project
    return _ILLEGAL_IN_PROJECT.sub("-", project)[:_PROJECT_CHARS]


def entity_of(run: RunInfo, settings: WandbSettings) -> str:
    """Return the entity: the argument of ``init()``, else the producer's ``WANDB_ENTITY``, else the bridge's."""
    return run.entity or run.identity.get(semconv.WANDB_ENTITY) or settings.entity


def resume_of(run: RunInfo, settings: WandbSettings) -> str:
    """Return how an existing run is treated: by the producer's ``WANDB_RESUME``, else by the bridge's.

    An unknown value of the producer is ignored with a warning.
    """
    requested = run.identity.get(semconv.WANDB_RESUME, "").strip().lower()
    # It comes from the job, which is running: a warning, and no block.
    if requested and requested not in RESUMES:
        _log.warning(
            "W&B: WANDB_RESUME=%r of the job: expected %s; ignored",
            requested[:80],
            " or ".join(RESUMES),
        )
        return settings.resume
    return requested or settings.resume
