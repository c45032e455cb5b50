"""The one place that imports wandb: silent, never asking, with the run's identity from us alone.

The bridge has no terminal of its own, may hold many runs (``reinit="create_new"``), and must not show itself in them:
no console capture, system metrics, git, requirements or code. wandb stops a run by SIGINT to the main thread (the
Stop button, ``stop_fn`` in wandb_settings.py); here that is a note, never a signal.
"""

from __future__ import annotations

import importlib
import netrc
import os
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

from otel_bridge import semconv
from otel_bridge.errors import BlockedError
from otel_bridge.exporter import RunInfo
from otel_bridge_wandb.errors import LOGIN_HELP, as_bridge_errors
from otel_bridge_wandb.settings import WandbSettings, entity_of, group_of, project_of, run_id_of
from otel_bridge_wandb.versions import require_supported

Wandb = Any
"""The module ``wandb``, whose types are not strict."""
WandbRun = Any

_LOCK: Final = threading.Lock()
_IDENTITY: Final = (
    "WANDB_ENTITY", "WANDB_JOB_TYPE", "WANDB_LAUNCH", "WANDB_MODE", "WANDB_NAME", "WANDB_NOTES", "WANDB_PROJECT",
    "WANDB_RESUME", "WANDB_RUN_GROUP", "WANDB_RUN_ID", "WANDB_SHARED_MODE", "WANDB_SWEEP_ID", "WANDB_TAGS",
)  # fmt: skip
"""Variables that would name a run: a bridge takes that from its records, never from its own environment."""
_PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
_THIS_MACHINE: Final = ("localhost", "127.0.0.1", "::1")
_DEFAULT_HOSTS: Final = ("api.wandb.ai", "api.forge.coreweave.com")


def load() -> Wandb:
    """Import wandb and start its session, silent; once in a process, safe from any thread."""
    with _LOCK, as_bridge_errors("loading the package"), _without(_IDENTITY):
        # Inherited by a child, it leads to "run ID is in use" of the parent's service.
        if not _own_service():
            os.environ.pop("WANDB_SERVICE", None)
        # wandb's own telemetry: a fifth of a row's cost, and offline it would still look for api.wandb.ai.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        _keep_this_machine_unproxied()
        wandb = importlib.import_module("wandb")
        require_supported(str(wandb.__version__))
        session = wandb.setup(settings=_settings(wandb, _QUIET))
        wandb.termsetup(session.settings, None)  # silent also where somebody else began the session
        return wandb


def credentials_missing(wandb: Wandb, settings: WandbSettings) -> bool:
    """Tell whether wandb would have to ask for a key; looks where wandb looks and asks nobody."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return False
    known = wandb.setup().settings
    base_url = str(getattr(known, "base_url", "")).rstrip("/")
    if getattr(known, "api_key", None) and settings.base_url in {"", base_url}:
        return False
    return not _in_netrc(settings.base_url or base_url)


def require_credentials(wandb: Wandb, settings: WandbSettings) -> None:
    """Raise `BlockedError` when there is no key."""
    if credentials_missing(wandb, settings):
        raise BlockedError("W&B has no key for this server and none is asked for here", help=LOGIN_HELP)


def init(
    wandb: Wandb, run: RunInfo, settings: WandbSettings, *, resume: str | None, stopped: Callable[[], None]
) -> WandbRun:
    """Open the run and return wandb's object for it.

    Args:
        wandb: From `load`.
        run: The run.
        settings: Where.
        resume: How an existing run is treated; ``None`` offline.
        stopped: Called from another thread when the server or a dead upload wants the run stopped.
    """
    identity = run.identity
    tags = run.tags or tuple(tag.strip() for tag in identity.get(semconv.WANDB_TAGS, "").split(",") if tag.strip())
    values: dict[str, object] = {
        **_QUIET,
        "mode": "offline" if settings.offline else "online" if settings.sharing is None else "shared",
        "base_url": settings.base_url or None,
        "root_dir": str(settings.root(run)),
        "entity": entity_of(run, settings) or None,
        "project": project_of(run),
        "run_id": run_id_of(run, settings),
        "run_name": run.name or None,
        "run_group": group_of(run, settings),
        "run_tags": tags or None,
        "run_notes": run.notes or identity.get(semconv.WANDB_NOTES),
        "run_job_type": run.job_type or identity.get(semconv.WANDB_JOB_TYPE),
        "resume": resume,
        "reinit": "create_new",
        "init_timeout": settings.limits.init_timeout_s,
        "finish_timeout": settings.limits.finish_timeout_s,
        "finish_timeout_raises": True,
        "stop_fn": stopped,
        "x_file_stream_transmit_interval": float(settings.limits.transmit_s),
        **_shared(run, settings),
    }
    with as_bridge_errors("opening the run"):
        return wandb.init(settings=_settings(wandb, values))


def _shared(run: RunInfo, settings: WandbSettings) -> Mapping[str, object]:
    """Return what a writer of a shared run is told: a secondary neither ends it nor writes its files."""
    if settings.sharing is None:
        return {}
    primary = settings.sharing.is_primary(run)
    return {
        "x_label": f"n{run.node_rank}",
        "x_primary": primary,
        "x_update_finish_state": primary,
        # Else each writer would send what it knows of the others' last values, long out of date.
        "x_server_side_derived_summary": True,
    }


def api(wandb: Wandb, settings: WandbSettings) -> Any:
    """Return ``wandb.Api`` for the server of *settings*."""
    overrides = {"base_url": settings.base_url} if settings.base_url else {}
    return wandb.Api(overrides=overrides, timeout=max(1, int(settings.limits.init_timeout_s)))


def define(run: WandbRun, name: str, axis: str | None) -> None:
    """Bind *name* to *axis*, or declare *name* a hidden axis; by its exact name, a ``*`` or a dot in it included."""
    name, axis = undotted(name), axis and undotted(axis)
    if "*" not in name:
        if axis is None:
            run.define_metric(name, hidden=True, step_sync=False)
        else:
            run.define_metric(name, step_metric=axis, step_sync=False)
        return
    # define_metric() takes a trailing star for a glob and refuses any other; the record beneath it takes any name.
    records: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    publish: Callable[[object], None] | None = getattr(run, "_metric_callback", None)
    if publish is not None:
        record = records.MetricRecord(name=name, step_metric=axis or "")
        record.options.defined = True
        publish(record)


def define_all(run: WandbRun, prefix: str, axis: str) -> None:
    """Bind every key that begins with *prefix* to *axis*."""
    run.define_metric(f"{prefix}*", step_metric=undotted(axis), step_sync=False)


def undotted(name: str) -> str:
    """Return *name* so that its dots part no nested maps (``splitEscapedDottedMetricName`` in runmetric.go)."""
    return name.replace(".", "\\.")


def leave_open(run: WandbRun) -> None:
    """Make the coming ``finish()`` upload all but not mark the run complete: another bridge goes on with it.

    wandb has no public call for that; its exit record has the field (``not_complete``, read in sender.go).
    """
    interface = getattr(run, "_interface", None)
    make: Callable[..., Any] | None = getattr(interface, "_make_exit", None)
    if interface is None or make is None:
        return

    def make_exit(*args: object, **kwargs: object) -> object:
        record = make(*args, **kwargs)
        record.not_complete = True
        return record

    interface._make_exit = make_exit


def sync_dir(run: WandbRun) -> Path:
    """Return the folder in which wandb keeps this run's files."""
    return Path(str(run.settings.sync_dir))


_QUIET: Final[Mapping[str, object]] = {
    "silent": True,
    "quiet": True,
    "console": "off",
    "symlink": False,
    "disable_git": True,
    "disable_code": True,
    "save_code": False,
    "disable_job_creation": True,
    "label_disable": True,
    "sagemaker_disable": True,
    "x_disable_stats": True,
    "x_disable_meta": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
}


def _settings(wandb: Wandb, values: Mapping[str, object]) -> object:
    known = cast("Mapping[str, object]", wandb.Settings.model_fields)
    return wandb.Settings(**{name: value for name, value in values.items() if name in known and value is not None})


def _keep_this_machine_unproxied() -> None:
    """Except this machine from a proxy of the environment: wandb's service does so by itself, its Python part not."""
    if not any(os.environ.get(name) for name in _PROXIES):
        return
    # Readers differ in which of the two they look at first.
    for name, other in (("NO_PROXY", "no_proxy"), ("no_proxy", "NO_PROXY")):
        excepted = (os.environ.get(name) or os.environ.get(other) or "").split(",")
        excepted = [host.strip() for host in excepted if host.strip()]
        os.environ[name] = ",".join([*excepted, *(host for host in _THIS_MACHINE if host not in excepted)])


def _own_service() -> bool:
    setup: Any = importlib.import_module("wandb.sdk.wandb_setup")
    return getattr(getattr(setup, "_singleton", None), "_connection", None) is not None


def _in_netrc(base_url: str) -> bool:
    path = os.environ.get("NETRC")
    paths = [Path(path)] if path else [Path.home() / ".netrc", Path.home() / "_netrc"]
    host = urlsplit(base_url).netloc
    hosts = {host, *(_DEFAULT_HOSTS if not host or host in _DEFAULT_HOSTS else ())}
    for file in paths:
        try:
            known = netrc.netrc(file.expanduser())
        except (OSError, netrc.NetrcParseError):
            continue
        if any(name in known.hosts for name in hosts):
            return True
    return False


@contextmanager
def staging_in(folder: Path) -> Generator[None, None, None]:
    """Let wandb put the files of an increment into *folder*, not into the user's home, unless they say where.

    An offline directory is then whole, and gone when it is deleted. The variable is read at each use (``get_data_dir``
    in wandb/env.py); there is no setting for it.
    """
    if os.environ.get("WANDB_DATA_DIR"):
        yield
        return
    with _LOCK:
        os.environ["WANDB_DATA_DIR"] = str(folder)
        try:
            yield
        finally:
            os.environ.pop("WANDB_DATA_DIR", None)


@contextmanager
def _without(names: tuple[str, ...]) -> Generator[None, None, None]:
    """Hide variables from wandb, which reads its environment by itself."""
    hidden = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)
