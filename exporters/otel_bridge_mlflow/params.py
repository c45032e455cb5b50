"""Config -> params of an MLflow run.

Nested maps are flattened with ``/`` under the role; a hash distinguishes entries whose names become
equal. Params cannot change: a value that differs after a resume becomes the tag ``config/<key>``.
Only changes are sent. Params never share a batch with metrics, because one refused param would make
MLflow refuse the metrics too.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Literal

from otel_bridge.otlp.request_size import refused_items
from otel_bridge.records import Json
from otel_bridge_mlflow.connection import LOG_BATCH, Connection
from otel_bridge_mlflow.errors import Refused, as_bridge_errors
from otel_bridge_mlflow.keys import Names, cut_name
from otel_bridge_mlflow.runs import OpenMlflowRun
from otel_bridge_mlflow.traces.spans import clean_text

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

    def __init__(
        self, connection: Connection, run: OpenMlflowRun, names: Names
    ) -> None:
        self._connection = connection
        self._run_id = run.id
        self._names = names
        self._params = dict(run.params)
        # All of the run's tags: those of the config have a prefix of their own.
        self._tags = dict(run.tags)

    def write(self, role: str | None, config: Mapping[str, Json]) -> None:
        """Set the config of *role*; an entry that MLflow does not accept is left out and logged.

        What differs from what the run has is sent: new entries as params, changed ones as tags. A
        repeated call sends what did not arrive.

        Raises:
            RetryableError: As `Connection.request`.
            BlockedError: As `Connection.request`.
        """
        params: dict[str, str] = {}
        tags: dict[str, str] = {}
        values: dict[str, str] = {}
        preferred_names: dict[str, str] = {}
        parent_path = (role,) if role else ()
        for path, value in leaves(config):
            identity = _identity(role, path)
            values[identity] = value
            preferred_names[identity] = "/".join((*parent_path, *path))
        self._names.add_paths(preferred_names)
        # Before the params are sent: after a kill in between, a key must not get another name.
        self._names.store()
        for identity, value in values.items():
            name = self._names.name(identity)
            text = value[: self._connection.rules.param_length]
            stored_text = self._params.get(name)
            # Params cannot change, so only the first value of a key is one.
            if stored_text is None:
                params[name] = text
                continue
            tag = self._tag(name)
            changed = value[: self._connection.rules.tag_length]
            # A value that went back to the first one is sent too, or the tag would show the one
            # between.
            if (stored_text != text or tag in self._tags) and self._tags.get(
                tag
            ) != changed:
                tags[tag] = changed
        # Params and tags apart: MLflow refuses a batch as a whole for one bad param.
        params_of_others: dict[str, str] = {}
        for (name, text), _ in self._refused("params", params, self._params):
            # Another bridge of this run wrote the param meanwhile, and params cannot change.
            params_of_others[name] = text
            tags[self._tag(name)] = text
        for (name, _), exc in self._refused("tags", tags, self._tags):
            # The config is not worth a blocked run: its other entries and all records go on.
            _log.warning("%r is left out of the config: %s", name, exc)
        # Only behind the tags: a repeated call must send those again.
        self._params |= params_of_others

    def _tag(self, name: str) -> str:
        """Return the tag for later values of a param.

        A tag that would be too long is cut and gets a hash.
        """
        tag = f"{_TAG_PREFIX}{name}"
        length = self._connection.rules.name_length
        if len(tag) <= length:
            return tag
        return cut_name(tag, length, name)

    def _refused(
        self, kind: _Kind, entries: Mapping[str, str], stored: dict[str, str]
    ) -> Iterator[tuple[tuple[str, str], Refused]]:
        """Log *entries* in requests of MLflow's size, and note them in *stored*.

        Yield each entry that MLflow refuses alone, with its error. Raises as `write`.
        """
        # MLflow's limit for one request (100 in 3.17).
        size = self._connection.rules.params
        items = list(entries.items())
        for start in range(0, len(items), size):
            log = partial(self._log, kind, stored)
            yield from refused_items(items[start : start + size], log, Refused)

    def _log(
        self,
        kind: _Kind,
        stored: dict[str, str],
        items: Sequence[tuple[str, str]],
    ) -> None:
        """Log *items* in one request.

        Only then they are noted in *stored*. Raises as `as_bridge_errors` and `Connection.request`.
        """
        if self._connection.settings.remote:
            # Not by MLflow's client, which hides that a proxy found the request too large (3.17).
            listed: list[Json] = [{"key": key, "value": value} for key, value in items]
            self._connection.request(
                "POST", LOG_BATCH, json={"run_id": self._run_id, kind: listed}
            )
        else:
            self._log_to_database(kind, items)
        stored.update(items)

    def _log_to_database(self, kind: _Kind, items: Sequence[tuple[str, str]]) -> None:
        """Log *items* through MLflow's client; raises as `as_bridge_errors`."""
        entities = self._connection.entities
        make = entities.RunTag
        if kind == "params":
            make = entities.Param
        batch = {kind: [make(key, value) for key, value in items]}
        with as_bridge_errors(
            f"logging {len(items)} {kind} to {self._connection.shown}"
        ):
            self._connection.client.log_batch(self._run_id, synchronous=True, **batch)


def leaves(
    config: Mapping[str, Json], above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the path of each leaf of *config*, and the leaf as text; nothing of an empty map.

    A list is JSON: MLflow's params are texts.
    """
    for key, value in config.items():
        path = (*above, key)
        if isinstance(value, Mapping):
            yield from leaves(value, path)
        else:
            text = (
                json.dumps(value, ensure_ascii=False)
                if isinstance(value, list)
                else str(value)
            )
            yield path, clean_text(text)


def _identity(role: str | None, path: Sequence[str]) -> str:
    """Return the identity of an entry: its flat key, if no other entry can have the same flat key."""
    parts = (role, *path) if role else path
    # A map in a config without a role may have the name of a role.
    is_unique = len(path) == 1 or bool(role)
    # A slash within a key, or a NUL at the beginning of one, reads like another path or the form below.
    if is_unique and not any("/" in part or part.startswith("\0") for part in parts):
        return "/".join(parts)
    return f"\0{json.dumps([role or None, *path])}"
