"""Config -> params of an MLflow run.

Nested maps flatten with ``/`` under the role. Params cannot change: what differs after a resume becomes the tag
``config/<key>``. Only what changed is sent. Params never share a batch with metrics, since one refused param would
take the metrics with it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Literal

from otel_bridge.records import Json
from otel_bridge_mlflow.connection import Connection
from otel_bridge_mlflow.errors import Refused, as_bridge_errors
from otel_bridge_mlflow.keys import Names
from otel_bridge_mlflow.runs import OpenRun

_log = logging.getLogger(__name__)
_TAG_PREFIX = "config/"
_Kind = Literal["params", "tags"]


class ParamWriter:
    """Writes the config of one MLflow run.

    Args:
        connection: The store.
        run: The run, with what it has.
        names: Names of the keys.
    """

    def __init__(self, connection: Connection, run: OpenRun, names: Names) -> None:
        self._connection = connection
        self._run_id = run.id
        self._names = names
        self._params = dict(run.params)
        self._tags = {key: value for key, value in run.tags.items() if key.startswith(_TAG_PREFIX)}

    def write(self, role: str | None, config: Mapping[str, Json]) -> None:
        """Set the config of *role*; an entry MLflow does not take is left out and said.

        Raises:
            RetryableError: As `Connection.request`.
            BlockedError: As `Connection.request`.
        """
        try:
            self._write(role, config)
        except Refused:
            # Another bridge of this run wrote one of them meanwhile: look again, then compare anew.
            with as_bridge_errors(f"reading the params of run {self._run_id}"):
                self._params = dict(self._connection.client.get_run(self._run_id).data.params)
            self._write(role, config, halve=True)

    def _write(self, role: str | None, config: Mapping[str, Json], *, halve: bool = False) -> None:
        params: dict[str, str] = {}
        tags: dict[str, str] = {}
        for key, value in flattened(config, f"{role}/" if role else "").items():
            name = self._names.name(key)
            text = value[: self._connection.rules.param_length]
            held = self._params.get(name)
            if held is None:
                params[name] = text
                continue
            tag = self._tag(name)
            changed = value[: self._connection.rules.tag_length]
            if (held != text or tag in self._tags) and self._tags.get(tag) != changed:
                tags[tag] = changed
        self._send("params", list(params.items()), self._params, halve=halve)
        self._send("tags", list(tags.items()), self._tags, halve=halve)

    def _tag(self, name: str) -> str:
        """Return the tag for later values of a param; where it would be too long, a hash keeps it apart from others."""
        tag, length = f"{_TAG_PREFIX}{name}", self._connection.rules.name_length
        if len(tag) <= length:
            return tag
        digits = hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()[:8]
        return f"{tag[: length - 9]}-{digits}"

    def _send(self, kind: _Kind, items: Sequence[tuple[str, str]], held: dict[str, str], *, halve: bool) -> None:
        size = self._connection.rules.params
        for start in range(0, len(items), size):
            batch = items[start : start + size]
            try:
                self._log(kind, batch)
                held.update(batch)
            except Refused as exc:
                if not halve:
                    raise
                if len(batch) == 1:
                    _log.warning("%s %r is left out: %s", kind[:-1], batch[0][0], exc)
                    continue
                middle = len(batch) // 2
                self._send(kind, batch[:middle], held, halve=True)
                self._send(kind, batch[middle:], held, halve=True)

    def _log(self, kind: _Kind, items: Sequence[tuple[str, str]]) -> None:
        entities = self._connection.entities
        make = entities.Param if kind == "params" else entities.RunTag
        batch = {kind: [make(key, value) for key, value in items]}
        with as_bridge_errors(f"logging {len(items)} {kind} to {self._connection.shown}"):
            self._connection.client.log_batch(self._run_id, synchronous=True, **batch)


def flattened(config: Mapping[str, Json], prefix: str = "") -> dict[str, str]:
    """Return *config* with nested maps flattened by ``/`` and its leaves as text; lists as JSON."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{prefix}{key}/")
        else:
            text = json.dumps(value, ensure_ascii=False) if isinstance(value, list) else str(value)
            flat[f"{prefix}{key}"] = text.replace("\0", "�").encode("utf-8", "replace").decode()
    return flat
