"""Imports wandb, in this module only: without output or prompts, and with the run's identity from the bridge alone.

The bridge has no terminal of its own, may hold many runs (``reinit="create_new"``), and must not
add its own data to them: no console capture, system metrics, git, requirements or code. wandb stops
a run by SIGINT to the main thread (the Stop button, ``stop_fn`` in wandb_settings.py); here a
callback replaces the signal.
"""

from __future__ import annotations

import importlib
import logging
import netrc
import os
import subprocess
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

from otel_bridge import semconv
from otel_bridge.errors import BlockedError
from otel_bridge.exporter import RunInfo, call_within
from otel_bridge.otlp.proxies import direct_variables
from otel_bridge.values.mappings import only, present
from otel_bridge_wandb.errors import LOGIN_HELP, as_bridge_errors, refusal_of
from otel_bridge_wandb.settings import (
    WandbSettings,
    entity_of,
    group_of,
    project_of,
    run_id_of,
    sweep_of,
)
from otel_bridge_wandb.versions import (
    WandbAbilities,
    abilities_of,
    ignore_stop,
    replace_what_interferes,
)

Wandb = Any
"""The module ``wandb``, whose types are not strict."""
WandbRun = Any

# Several runs open in threads of one process, and all change its environment.
_LOCK = threading.Lock()
_SERVICE = SimpleNamespace(pid=0)
"""The process that started wandb's service: a child inherits its variable and must not use it."""
_TUNING = ("x_file_stream_transmit_interval", "x_server_side_derived_summary")
_IDENTITY = (
    "WANDB_ENTITY", "WANDB_JOB_TYPE", "WANDB_LAUNCH", "WANDB_MODE", "WANDB_NAME", "WANDB_NOTES", "WANDB_PROJECT",
    "WANDB_RESUME", "WANDB_RUN_GROUP", "WANDB_RUN_ID", "WANDB_SHARED_MODE", "WANDB_SWEEP_ID", "WANDB_SWEEP_PARAM_PATH",
    "WANDB_TAGS",
)  # fmt: skip
"""Variables that would name a run. A bridge uses its records for that, never its own
environment."""
_MAX_TAG_CHARS = 64
_DEFAULT_HOSTS = ("api.wandb.ai", "api.forge.coreweave.com")


def load() -> Wandb:
    """Import wandb and start its session, silent; safe from any thread.

    Once in a process, and again after its service has ended.

    Raises:
        BlockedError: wandb cannot be imported, or lacks a call or setting that is needed.
        RetryableError: wandb's session did not start.
    """
    with _LOCK, as_bridge_errors("loading the package"), _without(_IDENTITY):
        # An inherited variable would lead to "run ID is in use" of the parent's service.
        if _SERVICE.pid != os.getpid():
            os.environ.pop("WANDB_SERVICE", None)
        # wandb's own telemetry: a fifth of a row's cost, and offline it would still look for
        # api.wandb.ai.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        # As wandb's service does, but its Python part does not.
        os.environ.update(direct_variables(os.environ))
        wandb = importlib.import_module("wandb")
        abilities(wandb)
        replace_what_interferes(wandb)
        session = _living_session(wandb)
        # After setup(), which sets WANDB_SERVICE: a fork from here on sees another pid.
        _SERVICE.pid = os.getpid()
        wandb.termsetup(
            session.settings, None
        )  # silent also where somebody else began the session
        return wandb


def _living_session(wandb: Wandb) -> Any:
    """Return wandb's session, a new one if the service of the former has ended, as one that is killed.

    wandb starts no second service in a session (``ensure_service``), so that every call would fail
    until this process ends. Raises wandb's own exceptions.
    """
    session = wandb.setup(settings=_settings(wandb, _QUIET))
    process = service_process(session)
    if process is None or process.poll() is None:
        return session
    _log.warning(
        "W&B: wandb's service has ended (%s); another one is started",
        process.returncode,
    )
    # It forgets the session first, and then raises for the lost connection, or exits with the
    # service's status.
    with suppress(Exception, SystemExit):
        call_within(_EXIT_S, wandb.teardown)
    os.environ.pop("WANDB_SERVICE", None)
    _UNCLOSED.clear()
    return wandb.setup(settings=_settings(wandb, _QUIET))


def service_process(session: Any) -> subprocess.Popen[bytes] | None:
    """Return the process of the service that *session* has started.

    ``None`` without one, and for a wandb with other private parts (0.23 to 0.31 have these).
    """
    connection: object = getattr(session, "_connection", None)
    process: object = getattr(getattr(connection, "_proc", None), "_process", None)
    if isinstance(process, subprocess.Popen):
        return cast("subprocess.Popen[bytes]", process)
    return None


def abilities(wandb: Wandb) -> WandbAbilities:
    """Return what this wandb can do.

    Raise `BlockedError` when it lacks a required call or setting.
    """
    return abilities_of(wandb, tuple(_QUIET) + _TUNING)


def require_credentials(wandb: Wandb, settings: WandbSettings) -> None:
    """Raise `BlockedError` if wandb finds no API key: it would prompt for one, on the user's terminal under `run`.

    The server is not asked, so that a key that it refuses shows only when the run is opened.
    """
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return
    wandb_settings = wandb.setup().settings
    base_url = str(getattr(wandb_settings, "base_url", "")).rstrip("/")
    # The session's key is that of its own server.
    if getattr(wandb_settings, "api_key", None) and settings.base_url in {"", base_url}:
        return
    if not _in_netrc(settings.base_url or base_url):
        raise BlockedError(
            "W&B has no key for this server and none is asked for here", help=LOGIN_HELP
        )


def init(
    wandb: Wandb,
    run: RunInfo,
    settings: WandbSettings,
    *,
    resume: str | None,
    exists: bool = False,
    config: Mapping[str, object] | None = None,
) -> WandbRun:
    """Open the run and return wandb's object for it.

    Args:
        wandb: From `load`.
        run: The run.
        settings: Where.
        exists: Whether the server has the run, so that a generated name must not replace its name.
        resume: Treatment of an existing run; ``None`` offline.
        config: What the server holds of a sweep's trial, which the first upload would replace.

    Raises:
        RetryableError: wandb's service or the server did not answer in time.
        BlockedError: wandb refused: no access, a deleted run, or a setting that it does not accept.
    """
    identity = run.identity
    values: dict[str, object] = {
        **_QUIET,
        "mode": _mode(settings),
        "base_url": settings.base_url or None,
        "api_key": None if settings.offline else _key_of_environment(),
        "root_dir": str(settings.root(run)),
        "entity": entity_of(run, settings) or None,
        "project": project_of(run),
        "run_id": run_id_of(run, settings),
        "run_name": _name(run, settings, exists=exists),
        "run_group": group_of(run, settings),
        "run_tags": _tags_of(run) or None,
        "run_notes": run.notes or identity.get(semconv.WANDB_NOTES),
        "run_job_type": run.job_type or identity.get(semconv.WANDB_JOB_TYPE),
        "sweep_id": sweep_of(run),
        "resume": resume,
        # One process writes several runs.
        "reinit": "create_new",
        "init_timeout": settings.limits.init_timeout_s,
        "finish_timeout": settings.limits.finish_timeout_s,
        # Without it, finish() that ran out of time returns as if all had arrived.
        "finish_timeout_raises": True,
        "stop_fn": ignore_stop,
        "x_file_stream_transmit_interval": float(settings.limits.transmit_s),
        **_shared(run, settings),
    }
    with as_bridge_errors("opening the run"):
        wandb_settings = _settings(wandb, values)
        try:
            return wandb.init(settings=wandb_settings, config=dict(config or {}))
        except BaseException as exc:
            # Else wandb's service refuses every later init() of this run: "run ID … is in use".
            close_failed_init(wandb, run_id_of(run, settings), exc)
            reason = refusal_of(exc, settings.root(run), run_id_of(run, settings))
            if reason:
                raise RuntimeError(reason) from exc
            raise


def _mode(settings: WandbSettings) -> str:
    if settings.offline:
        return "offline"
    if settings.sharing is None:
        return "online"
    return "shared"


def _name(run: RunInfo, settings: WandbSettings, *, exists: bool) -> str | None:
    """Return the name for W&B.

    ``None`` where a generated one would replace that of a run that exists.
    """
    # Offline it is unknown whether the server has the run. A name that is only the id would
    # replace, with `wandb sync`, the name that the offline directory of another process gives.
    may_exist = exists or (settings.offline and run.name == run.id)
    if run.name_generated and may_exist:
        return None
    return run.name or None


def _tags_of(run: RunInfo) -> tuple[str, ...]:
    """Return the tags as W&B takes them: 1 to 64 characters, each once.

    Another one would keep the run from opening.
    """
    tags = run.tags or run.identity.get(semconv.WANDB_TAGS, "").split(",")
    unique_tags = dict.fromkeys([tag.strip()[:_MAX_TAG_CHARS] for tag in tags])
    return tuple(filter(None, unique_tags))


def _shared(run: RunInfo, settings: WandbSettings) -> Mapping[str, object]:
    """Return the settings of a writer of a shared run, none for the only writer of a run.

    A secondary neither ends the run nor writes its files.
    """
    if settings.sharing is None:
        return {}
    primary = settings.sharing.is_primary(run)
    return {
        "x_label": f"n{run.node_rank}",
        "x_primary": primary,
        "x_update_finish_state": primary,
        # Otherwise each writer would send outdated last values of the other writers.
        "x_server_side_derived_summary": True,
    }


def api(wandb: Wandb, settings: WandbSettings) -> Any:
    """Return ``wandb.Api`` for the server of *settings*.

    The key is given, because a session that began earlier may know another one. Raises wandb's own
    exceptions. Without a key it would prompt, which `require_credentials` prevents.
    """
    overrides = {}
    if settings.base_url:
        overrides = {"base_url": settings.base_url}
    return wandb.Api(
        overrides=overrides,
        # wandb.Api takes whole seconds, and requests refuses 0.
        timeout=max(1, int(settings.limits.init_timeout_s)),
        api_key=_key_of_environment(),
    )


def _key_of_environment() -> str | None:
    """Return the current key, because up to 0.26 wandb knows only the key at the start of its session."""
    return os.environ.get("WANDB_API_KEY") or None


def define(run: WandbRun, name: str, axis: str | None) -> None:
    """Bind *name* to *axis*, or declare *name* a hidden axis.

    By its exact name, a ``*`` or a dot in it included. A name with a ``*`` is left without an axis
    when wandb lacks the private call for its record. Raises wandb's own exceptions.
    """
    name = undotted(name)
    axis = axis and undotted(axis)
    if "*" not in name:
        if axis is None:
            run.define_metric(name, hidden=True, step_sync=False)
        else:
            run.define_metric(name, step_metric=axis, step_sync=False)
        return
    # define_metric() takes a trailing star for a glob and refuses any other; the record beneath it
    # takes any name.
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
    """Return *name* with escaped dots, which would separate nested maps (``splitEscapedDottedMetricName``)."""
    return name.replace(".", "\\.")


def sync_dir(run: WandbRun) -> Path:
    """Return the folder in which wandb keeps this run's files; wandb makes it at ``init()``."""
    return Path(str(run.settings.sync_dir))


_QUIET: Mapping[str, object] = {
    "silent": True,
    "quiet": True,
    # Else wandb would send the bridge's own output to the run.
    "console": "off",
    "symlink": False,
    "disable_git": True,
    "disable_code": True,
    "save_code": False,
    "disable_job_creation": True,
    "label_disable": True,
    "sagemaker_disable": True,
    # Metrics of the bridge's machine are not those of the training.
    "x_disable_stats": True,
    "x_disable_meta": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
}


def _settings(wandb: Wandb, values: Mapping[str, object]) -> object:
    """Return wandb's settings of *values* that this wandb has.

    Without ``None``, which would replace a default. `abilities` has checked those that must not be
    missing. Raises pydantic's ``ValidationError`` for a value that wandb does not accept, which
    `as_bridge_errors` makes a `BlockedError`.
    """
    fields = cast("Mapping[str, object]", wandb.Settings.model_fields)
    return wandb.Settings(**present(only(values, fields)))


def _in_netrc(base_url: str) -> bool:
    """Return whether a netrc file has an entry for the server, or, for the default server, one of its names.

    The files are those that wandb reads: ``NETRC``, else both names in the home folder. They are
    read here, because wandb prompts for a key that it does not find. A file that cannot be read
    counts as one without an entry.
    """
    path = os.environ.get("NETRC")
    paths = [path] if path else ["~/.netrc", "~/_netrc"]
    host = urlsplit(base_url).netloc.rpartition("@")[2]
    hosts = {host, *(_DEFAULT_HOSTS if not host or host in _DEFAULT_HOSTS else ())}
    for file in paths:
        try:
            entries = netrc.netrc(Path(file).expanduser())
        except (OSError, RuntimeError, netrc.NetrcParseError):
            # A file that is missing or damaged, or in a home that is not known, holds no key; wandb
            # would then prompt, and is not asked.
            continue
        if hosts & entries.hosts.keys():
            return True
    return False


@contextmanager
def staging_in(folder: Path) -> Generator[None, None, None]:
    """Let wandb put the files of media and tables into *folder*, unless the user names another one.

    An offline directory is then whole, and its deletion deletes all of it. wandb reads the variable
    at each use (``get_data_dir`` in wandb/env.py) and has no setting for it. Another run that loads
    wandb, or stages files, waits until the block ends.
    """
    with _LOCK:
        # Under the lock: the variable is of the whole process, and may be another run's.
        if os.environ.get("WANDB_DATA_DIR"):
            yield
            return
        os.environ["WANDB_DATA_DIR"] = str(folder)
        try:
            yield
        finally:
            os.environ.pop("WANDB_DATA_DIR", None)


@contextmanager
def _without(names: tuple[str, ...]) -> Generator[None, None, None]:
    """Hide variables from wandb, which reads its environment itself.

    After the block they are as before.
    """
    hidden = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


# Closes a run in wandb's service: leaves it open in W&B, or removes it after an ``init()`` that
# failed.
#
# The service keeps the stream of a failed ``init()``, and refuses its id from then on: "run ID … is
# in use". An exit record followed by ``inform_finish`` closes a stream, as in ``Run.finish``.
# Without the exit record the service, and every later ``init()`` of the process, waits forever.
# Source: ``RemoveStream`` in stream_mux.go.

_IN_USE = "is in use"
_EXIT_S = 5.0
"""Seconds that the service may take to close a stream."""
_UNCLOSED: set[str] = set()
"""Run ids whose streams the service still keeps after a failed ``init()``."""
_log = logging.getLogger("otel_bridge.wandb")


def leave_open(run: Any) -> None:
    """Make the next ``finish()`` upload everything without marking the run complete, so that it can be continued.

    wandb has no public call for that; its exit record has the field (``not_complete``, read in
    sender.go). Nothing changes for a wandb without its private interface: the page then shows the
    run as finished.
    """
    _mark_exit(getattr(run, "_interface", None))


def close_failed_init(wandb: Any, run_id: str, error: BaseException) -> None:
    """Close the stream of *run_id* after *error* of its ``init()``; never one of a run that is open here.

    If the service does not answer in time, a warning is logged, and this is tried again after the
    next failure, which is then "in use".
    """
    # Another writer of this process has the run open: its stream must stay.
    if _IN_USE in str(error) and run_id not in _UNCLOSED:
        return
    # Before the try: a service that does not answer leaves the id here for the next one.
    _UNCLOSED.add(run_id)
    try:
        service = wandb.setup().ensure_service()
        sockets: Any = importlib.import_module("wandb.sdk.interface.interface_sock")
        interface = sockets.InterfaceSock(
            service._asyncer, service._client, stream_id=run_id
        )
        _mark_exit(interface)
        interface.deliver_exit(1).wait_or(timeout=_EXIT_S)
        service.inform_finish(run_id=run_id)
        _UNCLOSED.discard(run_id)
    except Exception as exc:  # noqa: BLE001  # a service that is slow, or parts of wandb that changed
        _log.warning(
            "W&B: the failed start of run %s was not cleared: %r; it is tried again",
            run_id,
            exc,
        )


def _mark_exit(interface: Any) -> None:
    """Make the exit record of *interface* say that the run is not complete.

    Below 0.26.1 nothing changes: the record has no such field, and the page shows the run as
    finished.
    """
    make: Callable[..., Any] | None = getattr(interface, "_make_exit", None)
    if make is None:
        return

    def make_exit(*args: object, **kwargs: object) -> object:
        record: Any = make(*args, **kwargs)
        # Else W&B shows the run as finished meanwhile.
        if "not_complete" in record.DESCRIPTOR.fields_by_name:
            record.not_complete = True
        return record

    interface._make_exit = make_exit
