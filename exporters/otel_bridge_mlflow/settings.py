"""Reads the settings of the MLflow store: MLflow's own ``MLFLOW_TRACKING_URI``, without importing it, and two more.

Source: ``get_tracking_uri`` in mlflow/tracking/_tracking_service/utils.py; ``DATABASE_ENGINES`` in
mlflow/store/db/db_types.py.
"""

from __future__ import annotations

import os.path
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from otel_bridge.errors import ConfigError
from otel_bridge.exporter import RunInfo
from otel_bridge.setting_parsers import http_parts
from otel_bridge.settings import Setting, flag, seconds
from otel_bridge.text.addresses import without_credentials

WAL = Setting(
    "OTEL_BRIDGE_MLFLOW_WAL",
    False,
    flag,
    "Use write-ahead mode for an SQLite store, about 1.5 times as fast; not for network file systems.",
)
TIMEOUT_S = Setting(
    "OTEL_BRIDGE_MLFLOW_TIMEOUT_S",
    30.0,
    seconds,
    "Time limit for one request to a server.",
)
ALL_SERIES = Setting(
    "OTEL_BRIDGE_MLFLOW_ALL_SERIES",
    False,
    flag,
    "Write the statistics `total` and `kept` of rollouts too.",
)

DEFAULT_DATABASE = "mlflow.db"
_NOT_IN_ADDRESS = re.compile(r"\?|%[0-9A-Fa-f]{2}")
"""Text that SQLAlchemy does not read as a part of the file's name; from 2.1 on, ``%20`` is a
space."""
_DATABASES = frozenset({"mysql", "mssql", "postgresql"})


@dataclass(frozen=True, slots=True)
class MlflowSettings:
    """Holds the settings of one MLflow store.

    Attributes:
        uri: ``MLFLOW_TRACKING_URI``, with an absolute path for an SQLite file; may hold
            credentials.
        database: The SQLite file; ``None`` for a server or another database.
        remote: Whether the store is a server over HTTP.
        wal: Setting `WAL`.
        timeout_s: Setting `TIMEOUT_S`, at least 1 s.
        all_series: Setting `ALL_SERIES`.
    """

    uri: str
    database: Path | None
    remote: bool
    wal: bool = False
    timeout_s: float = TIMEOUT_S.default
    all_series: bool = False

    @classmethod
    def from_environment(cls, env: Mapping[str, str], cwd: Path) -> MlflowSettings:
        """Read the settings.

        A relative SQLite path is relative to *cwd*, like MLflow's own default.

        Raises:
            ConfigError: The address is not that of a store, or the store cannot hold a run safely.
        """
        make = partial(
            cls,
            wal=WAL.read(env),
            timeout_s=max(TIMEOUT_S.read(env), 1.0),
            all_series=ALL_SERIES.read(env),
        )
        # MLflow 3.17's default where ./mlruns holds no experiments; a file store is never used.
        raw = (
            env.get("MLFLOW_TRACKING_URI", "").strip()
            or f"sqlite:///{DEFAULT_DATABASE}"
        )
        scheme = ""
        if ":" in raw:
            scheme = raw.partition(":")[0].lower()
        if scheme == "sqlite":
            database, query = _sqlite_path(raw, cwd)
            return make(f"sqlite:///{database}{query}", database, remote=False)
        if http_parts(raw) is not None:
            return make(raw.rstrip("/"), None, remote=True)
        # A driver may follow: postgresql+psycopg2.
        if scheme.partition("+")[0] in _DATABASES:
            return make(raw, None, remote=False)
        raise ConfigError(
            f"MLFLOW_TRACKING_URI={without_credentials(raw)!r}: {_refusal(raw, scheme)}"
        )

    @property
    def destination(self) -> Mapping[str, str]:
        """Return the variable that defines the destination, without credentials."""
        return {"MLFLOW_TRACKING_URI": without_credentials(self.uri)}

    def view(self, run: RunInfo) -> str:  # noqa: ARG002  # the UI finds the run by its experiment
        """Return the address of the server, or the command that opens the UI on the database."""
        address = without_credentials(self.uri)
        if self.remote:
            return address
        return f"mlflow ui --backend-store-uri {shlex.quote(address)}"


def _sqlite_path(raw: str, cwd: Path) -> tuple[Path, str]:
    """Return the absolute path of the file in an address, and the query behind it.

    Raises:
        ConfigError: The database is in memory, or its path has a character that SQLAlchemy reads
            otherwise.
    """
    location, _, query = raw.partition("?")
    path = location.partition(":///")[2]
    if not path or path == ":memory:":
        raise ConfigError(
            f"MLFLOW_TRACKING_URI={without_credentials(raw)!r}: a database in memory ends with the bridge; name a file"
        )
    # Absolute, because the bridge may work in another folder than the program.
    database = os.path.normpath(cwd / path)
    strange = _NOT_IN_ADDRESS.search(database)
    if strange is not None:
        raise ConfigError(
            f"MLflow's database would be {database!r}, and {strange[0]!r} has another meaning in the address of a "
            f"database; set MLFLOW_TRACKING_URI=sqlite:////FOLDER/{DEFAULT_DATABASE}, with a folder without "
            f"{strange[0]!r}, or the address of a server"
        )
    return Path(database), f"?{query}" if query else ""


def _refusal(raw: str, scheme: str) -> str:
    """Return why the store *raw* of *scheme* is not accepted, and what is."""
    # ``databricks``, ``databricks-uc`` and ``databricks://PROFILE`` name a workspace.
    if raw.lower().startswith("databricks"):
        return (
            "the exporter does not write to workspaces of Databricks; "
            f"use sqlite:///{DEFAULT_DATABASE} or the address of an MLflow server"
        )
    if scheme in {"", "file"}:
        return (
            "MLflow's file store keeps no traces, duplicates redelivered data, and is no longer maintained; "
            f"use sqlite:///{DEFAULT_DATABASE} or the address of a server"
        )
    return "expected sqlite:///FILE, http(s)://HOST, or a postgresql, mysql or mssql database"
