"""Connects to one MLflow store; the only module that imports MLflow.

MLflow is configured by its environment variables before its import. Its own retries are off,
because its default blocks a call for four minutes. Requests have a timeout and telemetry is off.
MLflow does not change OpenTelemetry's providers, and prints nothing on standard output, which
belongs to the training program under ``otel-bridge run``.
"""

from __future__ import annotations

import dataclasses
import importlib
import logging
import os
import posixpath
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import requests

from otel_bridge.capabilities import incompatibility, release_of
from otel_bridge.errors import BlockedError
from otel_bridge.text.addresses import without_credentials
from otel_bridge.text.secret_patterns import redact_and_cut
from otel_bridge_mlflow.errors import (
    LOGIN,
    MISSING,
    Refused,
    as_bridge_errors,
    outcome_of_status,
)
from otel_bridge_mlflow.keys import KeyRules
from otel_bridge_mlflow.settings import MlflowSettings
from otel_bridge_mlflow.sqlite_store import (
    prepare,
    require_writable,
    revisions_of,
)
from otel_bridge_mlflow.versions import (
    HINTS,
    INSTALL,
    MlflowAbilities,
    Package,
    abilities_of,
)

_BUSY = "PRAGMA busy_timeout = 5000"
_MIGRATIONS = "store/db_migrations/versions"
"""Folder of MLflow's schema migrations, below its package."""
_VERSION = "/version"
_ANY_EXPERIMENT = "/api/2.0/mlflow/experiments/search?max_results=1"
LOG_BATCH = "/api/2.0/mlflow/runs/log-batch"
# MLflow 3.17's own pattern, for versions that name theirs otherwise.
_LEGAL = re.compile(r"^[\w.\- /:]*$")
_ENVIRONMENT = {
    # MLflow 3.17's seven retries block a call for 246 s; the bridge retries by itself.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # "false" makes MLflow replace the tracer provider of the process (tracing/provider.py, 3.17).
    "MLFLOW_USE_DEFAULT_TRACER_PROVIDER": "true",
    # An asynchronous call returns before its data is stored, and a kill loses its queue.
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    # Else one long value fails its batch.
    "MLFLOW_TRUNCATE_LONG_VALUES": "true",
    # Standard output belongs to the training program.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


@dataclass(frozen=True, slots=True)
class Connection:
    """Holds the connection to one MLflow store.

    Attributes:
        settings: Settings of the store.
        client: ``mlflow.MlflowClient``.
        store: Its tracking store.
        rules: MLflow's limits.
        entities: ``mlflow.entities``.
        http_request: ``mlflow.utils.rest_utils.http_request``: MLflow's credentials, header and
            auth plug-ins.
        abilities: Abilities of the store.
    """

    settings: MlflowSettings
    client: Any
    store: Any
    rules: KeyRules
    entities: Any
    http_request: Callable[..., object]
    abilities: MlflowAbilities

    @property
    def shown(self) -> str:
        """Return the store's address without credentials."""
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
        is_page: bool = False,
    ) -> requests.Response:
        """Make one request to the server, with MLflow's own credentials and header plug-ins, without its retries.

        A web page is the answer of a login before the server, unless *is_page*.

        Raises:
            Refused: The server does not accept the payload.
            RetryableError: The server is down, slow or busy.
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
                # So that the status and the body are mapped here, and not a text of requests.
                raise_on_status=False,
                extra_headers=dict(headers or {}),
                **(body if method != "GET" else {}),
            )
        response = cast("requests.Response", answer)
        if response.status_code != 200:
            raise _failure(response, doing, missing_is_refused=missing_is_refused)
        if not is_page and "text/html" in response.headers.get("Content-Type", ""):
            # A login page answers 200: if that counted as success, the data would be lost.
            raise BlockedError(f"{doing}: a web page answered, not MLflow", help=LOGIN)
        return response

    def require_access(self) -> None:
        """Ask the server for little after a failure of MLflow's client.

        Of an answer without one of MLflow's codes, as gateways send them, the client hides the status
        and the wait that it asks for (3.17).

        Raises:
            RetryableError: The server is down, slow or busy.
            BlockedError: A person must act.
        """
        with suppress(Refused):  # the error of the client stays
            self.request("GET", _ANY_EXPERIMENT)


def _failure(
    response: requests.Response, doing: str, *, missing_is_refused: bool
) -> Exception:
    """Return the error of an answer that is not 200, by the error code in its body, else by its status.

    Of a proxy's answer, which has no code, the text is in the message. It is cut, and secrets in it
    are redacted.
    """
    code: str | None = None
    text = response.text
    try:
        body: object = response.json()
    except ValueError:
        # Not MLflow but a proxy answered: its status decides.
        body = None
    if isinstance(body, dict):
        fields = cast("dict[str, object]", body)
        if "error_code" in fields:
            code = str(fields["error_code"])
        # "detail" is what MLflow's FastAPI routes answer, such as that of OTLP.
        text = str(fields.get("message") or fields.get("detail") or text)
    if missing_is_refused and code in MISSING:
        return Refused(f"{doing}: {redact_and_cut(text, 500)}")
    return outcome_of_status(
        response.status_code,
        code,
        redact_and_cut(text, 500),
        doing,
        response.headers.get("Retry-After"),
    )


def connect(settings: MlflowSettings) -> Connection:
    """Import MLflow and connect. The tables of a new SQLite file are created.

    Raises:
        RetryableError: The store cannot be reached now.
        BlockedError: A person must act.
    """
    _prepare_environment(settings)
    if settings.database is not None:
        require_writable(settings.database)
    doing = f"connecting to {without_credentials(settings.uri)}"
    try:
        with as_bridge_errors(doing):
            return _connect(settings)
    except Refused as exc:
        # At the connection only the address can be at fault: nothing was sent that a record could
        # spoil.
        raise BlockedError(str(exc), help="check MLFLOW_TRACKING_URI") from exc


def probe(settings: MlflowSettings) -> tuple[str, ...]:
    """Return one sentence for each ability that the installed MLflow, or the server, lacks.

    A database is not opened, because that would create it.

    Raises:
        RetryableError: The server cannot be reached now.
        BlockedError: A person must act.
    """
    if settings.remote:
        return connect(settings).abilities.degraded
    _prepare_environment(settings)
    return abilities_of(_imported(settings), remote=False, server_version=None).degraded


def _imported(settings: MlflowSettings) -> Package:
    """Import MLflow and return the parts that are used.

    Raises:
        BlockedError: MLflow, or a package that it needs, cannot be imported or lacks a name.
    """
    # Imported here, because the module of an entry point imports no tracker.
    try:
        import mlflow  # noqa: PLC0415
        from mlflow import entities  # noqa: PLC0415
        from mlflow.utils import rest_utils  # noqa: PLC0415

        kind = "sqlalchemy_store.SqlAlchemyStore"
        if settings.remote:
            kind = "rest_store.RestStore"
        module, _, name = f"mlflow.store.tracking.{kind}".rpartition(".")
        store: Any = getattr(importlib.import_module(module), name)
        untyped = cast("Any", mlflow)
        version = str(untyped.__version__)
    except (ImportError, AttributeError) as exc:
        # The message names no version of MLflow, because another package that it imports may be at
        # fault.
        raise incompatibility(exc, "MLflow", INSTALL, hints=HINTS) or BlockedError(
            f"MLflow cannot be imported: {exc}", help=INSTALL
        ) from exc
    trace_tags: Any = None
    with suppress(ImportError):
        trace_tags = getattr(
            importlib.import_module("mlflow.tracing.constant"), "TraceTagKey", None
        )
    return Package(
        version, untyped.MlflowClient, entities, store, trace_tags, rest_utils
    )


def _connect(settings: MlflowSettings) -> Connection:
    """Open the store, with its tables made first.

    A server is asked for its version once it is connected, because its own calls and fields cannot
    be looked at.

    Raises:
        BlockedError: MLflow lacks a call, or the tables of the database are not its own.
        RetryableError: The store cannot be reached, or is being created.
        Refused: MLflow does not accept the address.
    """
    package = _imported(settings)
    # Checked before a store is created or read: a missing call blocks the exporter in any case.
    abilities = abilities_of(package, remote=settings.remote, server_version=None)
    if settings.database is not None:
        import mlflow  # noqa: PLC0415

        revisions = revisions_of(
            Path(str(mlflow.__file__)).parent / _MIGRATIONS, package.version
        )
        prepare(
            settings,
            settings.database,
            revisions,
            lambda uri: _make_store(package, uri),
        )
    client: Any = package.client(tracking_uri=settings.uri)
    store = _store_of(client, settings.uri)
    if settings.database is not None:
        _wait_less(store)
    opened = Connection(
        settings,
        client,
        store,
        _rules(),
        package.entities,
        package.rest.http_request,
        abilities,
    )
    if not settings.remote:
        return opened
    server_version = _server_version(opened)
    return dataclasses.replace(
        opened,
        abilities=abilities_of(package, remote=True, server_version=server_version),
    )


def _store_of(client: Any, uri: str) -> Any:
    """Return the tracking store behind *client*; MLflow has no public name for it.

    Raises `AttributeError` where neither name exists; `connect` makes that a `BlockedError`.
    """
    with suppress(ImportError, AttributeError):
        return importlib.import_module("mlflow.tracing.client").TracingClient(uri).store
    return client._tracking_client.store


def _make_store(package: Package, uri: str) -> None:
    """Let MLflow create the tables of a new store, and close it; raises MLflow's own errors."""
    # Else MLflow 3.17 prints two lines on this, which `otel-bridge run` would show between those of
    # its command.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
    _store_of(package.client(tracking_uri=uri), uri).engine.dispose()


def _rules() -> KeyRules:
    """Return MLflow's limits; a limit that it does not name is that of MLflow 3.17.

    Read and not written down here: a value over a limit fails its whole batch. Raises `ImportError`
    for an MLflow without that module, which `connect` makes a `BlockedError`.
    """
    rules: Any = importlib.import_module("mlflow.utils.validation")
    return KeyRules(
        legal=getattr(rules, "validate_param_and_metric_name", _LEGAL.match),
        ambiguous=getattr(rules, "path_not_unique", _is_ambiguous),
        name_length=getattr(rules, "MAX_ENTITY_KEY_LENGTH", 250),
        param_length=getattr(rules, "MAX_PARAM_VAL_LENGTH", 6000),
        tag_length=getattr(rules, "MAX_TAG_VAL_LENGTH", 8000),
        trace_tag_length=getattr(rules, "MAX_TRACE_TAG_VAL_LENGTH", 8000),
        experiment_length=getattr(rules, "MAX_EXPERIMENT_NAME_LENGTH", 500),
        metrics=getattr(rules, "MAX_METRICS_PER_BATCH", 1000),
        params=getattr(rules, "MAX_PARAMS_TAGS_PER_BATCH", 100),
    )


def _is_ambiguous(name: str) -> bool:
    """Return whether *name*, read as a path, is another name or leaves its folder, as MLflow 3.17 judges it."""
    normal = posixpath.normpath(name)
    return normal != name or normal == "." or normal.startswith(("..", "/"))


def _server_version(connection: Connection) -> str | None:
    """Return the version of the server, ``None`` when it gives none.

    A gateway, for instance, passes API calls only. Its calls then count as those of an old server.

    Raises:
        RetryableError: The server cannot be reached now.
    """
    try:
        # Flask's default: the bare number, as text/html.
        answer = connection.request("GET", _VERSION, is_page=True).text.strip()
    except (BlockedError, Refused):
        # The version is not needed: what the server cannot do shows with the first call.
        return None
    # Anything may answer there, such as a gateway's own page.
    if release_of(answer):
        return answer
    return None


def _wait_less(store: Any) -> None:
    """Limit the time for which a call waits for a lock of an SQLite file.

    The bridge retries after the error.

    MLflow sets 20 s at the start of each session (``make_managed_session`` in
    mlflow/store/db/utils.py). During that wait nothing else of the run can be written, and its
    bridge cannot stop.
    """
    engine = getattr(store, "engine", None)
    if engine is None:
        return  # MLflow's own 20 s apply
    event: Any = importlib.import_module("sqlalchemy").event
    # MLflow keeps the engine for all stores of an address, and SQLAlchemy takes a function once.
    event.listen(engine, "before_cursor_execute", _shorten, retval=True)


def _shorten(*call: Any) -> tuple[Any, Any]:
    """Return statement and parameters of *call*; only the statement that sets the wait is changed."""
    _, _, statement, parameters, *_ = call
    if statement.startswith("PRAGMA busy_timeout"):
        statement = _BUSY
    return statement, parameters


def _prepare_environment(settings: MlflowSettings) -> None:
    """Set the variables of `_ENVIRONMENT` and remove those of OTLP, for the whole process.

    The bridge has read its own settings before, so that it misses none of them.
    """
    # Before the import, because MLflow reads some of them once.
    os.environ.update(_ENVIRONMENT)
    os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = str(int(settings.timeout_s))
    # With OTEL_EXPORTER_OTLP_ENDPOINT MLflow installs a global MeterProvider
    # (tracing/processor/otel_metrics_mixin.py).
    for name in list(os.environ):
        if name.startswith("OTEL_EXPORTER_"):
            del os.environ[name]
