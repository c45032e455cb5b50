"""A connection to one MLflow store; the only module that imports MLflow.

MLflow is told by its environment variables before its import: no retries of its own (its default blocks a call for
four minutes), bounded requests, no telemetry, no touching of OpenTelemetry's providers, and nothing on standard output,
which under ``otel-bridge run`` is the training program's.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import sqlite3
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol, cast

from otel_bridge.errors import BlockedError, RetryableError
from otel_bridge.releases import release_of
from otel_bridge_mlflow.errors import LOGIN, MISSING, Refused, as_bridge_errors, outcome_of_status
from otel_bridge_mlflow.keys import Rules
from otel_bridge_mlflow.settings import MlflowSettings, without_credentials

_FIRST_USE_WAIT_S = 60.0
_BUSY = "PRAGMA busy_timeout = 5000"
_OLDEST, _TOO_NEW = (3, 10), (4, 0)
_INSTALL = "pip install 'otel-bridge[mlflow]'"
_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_USE_DEFAULT_TRACER_PROVIDER": "true",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "MLFLOW_TRUNCATE_LONG_VALUES": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


class Response(Protocol):
    """What is used of a ``requests.Response``."""

    status_code: int
    text: str
    headers: Mapping[str, str]

    def json(self) -> Any: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Connection:
    """One MLflow store.

    Attributes:
        settings: Where it is.
        client: ``mlflow.MlflowClient``.
        store: Its tracking store.
        rules: MLflow's limits.
        entities: ``mlflow.entities``.
        http_request: ``mlflow.utils.rest_utils.http_request``: MLflow's credentials, header and auth plug-ins.
    """

    settings: MlflowSettings
    client: Any
    store: Any
    rules: Rules
    entities: Any
    http_request: Callable[..., object]

    @property
    def shown(self) -> str:
        """The store's address without credentials."""
        return without_credentials(self.settings.uri)

    def request(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        missing_is_refused: bool = False,
    ) -> Response:
        """Make one request to the server, with MLflow's own credentials and header plug-ins, without its retries.

        Raises:
            Refused: It does not take the payload.
            RetryableError: It is down, slow or busy.
            BlockedError: A person must act.
        """
        body: dict[str, object] = {"json": json} if data is None else {"data": data}
        doing = f"{method} {self.shown}{path}"
        with as_bridge_errors(doing):
            answer: object = self.http_request(
                self.store.get_host_creds(),
                path,
                method,
                timeout=self.settings.timeout_s,
                raise_on_status=False,
                extra_headers=dict(headers or {}),
                **(body if method != "GET" else {}),
            )
        response = cast("Response", answer)
        if response.status_code != 200:
            raise _failure(response, doing, missing_is_refused=missing_is_refused)
        if "text/html" in response.headers.get("Content-Type", ""):
            # A login page answers 200: taken for success, what was sent would be lost.
            raise BlockedError(f"{doing}: a web page answered, not MLflow", help=LOGIN)
        return response


def _failure(response: Response, doing: str, *, missing_is_refused: bool) -> Exception:
    code: str | None = None
    text = response.text
    try:
        body: object = response.json()
    except ValueError:
        body = None
    if isinstance(body, dict):
        held = cast("dict[str, object]", body)
        code = str(held["error_code"]) if "error_code" in held else None
        text = str(held.get("message") or held.get("detail") or text)
    if missing_is_refused and code in MISSING:
        return Refused(f"{doing}: {text[:500]}")
    return outcome_of_status(response.status_code, code, text[:500], doing, response.headers.get("Retry-After"))


def connect(settings: MlflowSettings) -> Connection:
    """Import MLflow and connect; a new SQLite file gets its tables, by one process at a time.

    Raises:
        RetryableError: The store cannot be reached now.
        BlockedError: A person must act.
    """
    _prepare_environment(settings)
    _require_writable(settings)
    doing = f"connecting to {without_credentials(settings.uri)}"
    try:
        with as_bridge_errors(doing), _first_use(settings):
            return _connect(settings)
    except Refused as exc:
        raise BlockedError(str(exc), help="check MLFLOW_TRACKING_URI") from exc


def _connect(settings: MlflowSettings) -> Connection:
    # Here and not above: the module of an entry point imports no tracker.
    try:
        from mlflow import MlflowClient, __version__, entities  # noqa: PLC0415

        require_version(__version__)
        from mlflow.tracing.client import TracingClient  # noqa: PLC0415
        from mlflow.utils import rest_utils, validation  # noqa: PLC0415
    except ImportError as exc:
        raise BlockedError(f"MLflow cannot be imported: {exc}", help=_INSTALL) from exc

    untyped = cast("Any", SimpleNamespace(rest=rest_utils, validation=validation, tracing=TracingClient(settings.uri)))

    client: Any = MlflowClient(tracking_uri=settings.uri)
    if settings.database is not None:
        _wait_less(untyped.tracing.store)
    rules = Rules(
        legal=untyped.validation.validate_param_and_metric_name,
        ambiguous=untyped.validation.path_not_unique,
        name_length=validation.MAX_ENTITY_KEY_LENGTH,
        param_length=validation.MAX_PARAM_VAL_LENGTH,
        tag_length=validation.MAX_TAG_VAL_LENGTH,
        trace_tag_length=validation.MAX_TRACE_TAG_VAL_LENGTH,
        experiment_length=validation.MAX_EXPERIMENT_NAME_LENGTH,
        metrics=validation.MAX_METRICS_PER_BATCH,
        params=validation.MAX_PARAMS_TAGS_PER_BATCH,
    )
    return Connection(settings, client, untyped.tracing.store, rules, entities, untyped.rest.http_request)


def require_version(found: str) -> None:
    """Check the version of MLflow that is installed.

    Raises:
        BlockedError: It is one whose calls we do not know.
    """
    if not _OLDEST <= release_of(found) < _TOO_NEW:
        raise BlockedError(f"mlflow {found} is installed, one from 3.10 to below 4 is needed", help=_INSTALL)


def _wait_less(store: Any) -> None:
    """Let a call wait for a lock of an SQLite file no longer than we choose, then raise; it is tried again.

    MLflow sets 20 s at the begin of each session (``make_managed_session`` in mlflow/store/db/utils.py), while which
    nothing else of the run is written, nor its bridge stopped.
    """
    event: Any = importlib.import_module("sqlalchemy").event

    def shorten(*call: Any) -> tuple[Any, Any]:
        statement, parameters = call[2], call[3]
        return (_BUSY if statement.startswith("PRAGMA busy_timeout") else statement), parameters

    event.listen(store.engine, "before_cursor_execute", shorten, retval=True)


def _prepare_environment(settings: MlflowSettings) -> None:
    os.environ.update(_ENVIRONMENT)
    os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = str(int(settings.timeout_s))
    # With OTEL_EXPORTER_OTLP_ENDPOINT MLflow installs a global MeterProvider (tracing/processor/otel_metrics_mixin.py).
    for name in [name for name in os.environ if name.startswith("OTEL_EXPORTER_")]:
        del os.environ[name]


def _require_writable(settings: MlflowSettings) -> None:
    """Raise `BlockedError` when the database cannot be written: MLflow would try for minutes before it says so."""
    path = settings.database
    if path is None:
        return
    needed = [path.parent, *([path] if path.exists() else [])]
    for place in needed:
        if place.exists() and not os.access(place, os.W_OK):
            raise BlockedError(
                f"{place} is not writable", help="make it writable for this user, or set MLFLOW_TRACKING_URI"
            )


@contextmanager
def _first_use(settings: MlflowSettings) -> Generator[None]:
    """Keep other bridges out of a database file while its tables are made.

    MLflow's own initialisation takes no lock (sqlalchemy_store.py calls ``_initialize_tables``): of four processes
    that open a fresh file three fail. The lock is on the folder, so that no file of ours lies beside the user's.
    """
    if settings.database is None:
        yield
        return
    folder = settings.database.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as exc:
        raise BlockedError(f"{folder}: {exc.strerror}", help="make the database's folder exist and writable") from exc
    try:
        _lock(descriptor, settings)
        if settings.wal:
            with closing(sqlite3.connect(settings.database, timeout=20)) as database:
                database.execute("PRAGMA journal_mode=WAL")
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, settings: MlflowSettings) -> None:
    deadline = time.monotonic() + _FIRST_USE_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # noqa: PERF203  # waits anyway
            if time.monotonic() > deadline:
                raise RetryableError(f"{settings.database}: another process has been opening it for a minute") from None
            time.sleep(0.02)
        except OSError:
            return  # a file system without locks on folders (NFS): MLflow's error, if any, is tried again
        else:
            return
