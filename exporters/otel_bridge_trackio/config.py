"""The configs of a run's roles -> Trackio's one flat config of a run. Pure.

Trackio replaces the whole config at once. Entries that another bridge has written for the same run
are kept, as in the other trackers. Such a bridge serves roles on another machine, or the job's
earlier folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from time import monotonic
from typing import TypeAlias, cast

from otel_bridge.otlp.json_text import sound_leaf, with_leaves
from otel_bridge.records import Json, Scalar
from otel_bridge_trackio.payload import Payload

_Path: TypeAlias = "tuple[str | None, ...]"
"""A role and the keys below it."""
# Two keys of one run whose hashes agree too get a longer text to hash, so few digits are enough.
_HASH_DIGITS = 8
_SUMMARY = "summary"
_MAX_REPAIRS = 3
"""Most times that one config is stored again; a later Trackio may keep other keys than it is
given."""
_CHECK_S = 2.0
"""Seconds before the config is checked: a bridge that read the store before our write has then
written its own."""


class RunConfig:
    """Holds the config of one run with its summary, and decides when the store is to get it.

    Args:
        stored: Returns the config that the store has; empty when there is none or it cannot be read.
        group: Group of the run.

    Attributes:
        due: Whether the store lacks it; the next record brings it.
    """

    def __init__(self, stored: Callable[[], Payload], group: str | None) -> None:
        self._stored = stored
        self._group = group
        self._configs: dict[str | None, Mapping[str, Json]] = {}
        self._summary: dict[str, Scalar] = {}
        self._check_s: float | None = None
        self._repairs = 0
        self.due = False

    def set(self, role: str | None, config: Mapping[str, Json]) -> None:
        """Replace the config of *role*."""
        self._configs[role] = config
        self.require()

    def summarize(self, values: Mapping[str, Scalar]) -> None:
        """Set entries of the summary."""
        self._summary |= values
        self.require()

    def require(self) -> None:
        """Make the config due.

        A change of the user gets all repairs anew: their limit is for one config that stays lost.
        """
        self.due = True
        self._repairs = 0

    def payload(self, created: str) -> Payload:
        """Return the config to store, with what others have stored of the run, which was *created* then.

        Raises `ExporterError` when the store cannot be read: the config of others would be lost.
        """
        return beside(self._stored(), self._own(), group=self._group, created=created)

    def written(self) -> None:
        """Note that the store has the config.

        From now on `check` waits, because another bridge may have read the store before this write.
        """
        self.due = False
        self._check_s = monotonic() + _CHECK_S

    def refused(self) -> None:
        """Note that the store never takes this config; a change of it is due again."""
        self.due = False
        self._check_s = None

    def check(self, *, now: bool = False) -> None:
        """Make the config due if another bridge replaced it, after some time or *now*.

        Trackio replaces a whole config, so that of two bridges that read it at the same time one is
        lost. At most `_MAX_REPAIRS` times: a later Trackio may keep other keys than it is given.

        Raises:
            ExporterError: The store cannot be read.
        """
        if self._check_s is None or not (now or monotonic() >= self._check_s):
            return
        stored_config = self._stored()
        # Only now: a store that could not be read is looked at again by the repeated call.
        self._check_s = None
        # Empty is what a store returns that cannot be read.
        is_replaced = (
            bool(stored_config) and not self._own().keys() <= stored_config.keys()
        )
        if is_replaced and self._repairs < _MAX_REPAIRS:
            self._repairs += 1
            self.due = True

    def _own(self) -> Payload:
        return config_payload(self._configs, self._summary)


def config_payload(
    configs: Mapping[str | None, Mapping[str, Json]], summary: Mapping[str, Scalar]
) -> Payload:
    """Return all configs as one flat config, ``<role>/<key>``, with *summary* as ``summary/<key>``.

    A hash distinguishes keys that become equal; the first of them, by role, keeps the plain name.
    Values that Trackio's JSON refuses become text.
    """
    leaves: list[tuple[_Path, Json]] = []
    # Sorted: the same key must win its plain name at every call, or a restart would swap two names.
    for role in sorted(configs, key=lambda name: name or ""):
        leaves += _leaves(configs[role], (role,))
    leaves += _leaves({**summary}, (_SUMMARY,))
    flat: Payload = {}
    same_named: list[tuple[_Path, Json]] = []
    for path, value in leaves:
        if _name(path) in flat:
            same_named.append((path, value))
        else:
            flat[_name(path)] = value
    for path, value in same_named:
        # Only now that all plain names are in: a hashed name must not take that of another key.
        flat[_other_name(_name(path), path, flat)] = value
    # A config that cannot be stored would also prevent its row from being stored. orjson, with
    # which Trackio writes configs, raises for integers of more than 64 bits.
    return cast("Payload", with_leaves(flat, sound_leaf))


def beside(
    stored: Payload, ours: Payload, *, group: str | None, created: str
) -> Payload:
    """Return *ours* with the entries of *stored* that *ours* lacks, and with the fields that Trackio expects.

    So the config of another bridge of the run stays, which Trackio would replace.
    """
    parents = set(_above(ours))
    stored_entries: Payload = {}
    for key, value in stored.items():
        # When a map became a number, or a number a map, its old entries are not kept.
        if key not in parents and ours.keys().isdisjoint(_above([key])):
            stored_entries[key] = value
    trackio_fields: Payload = {
        "_Group": group or stored.get("_Group"),
        # The first creation stays: a resumed run was not created again.
        "_Created": stored.get("_Created") or created,
        "_Username": stored.get("_Username"),
    }
    # Trackio's own fields last, because no key of a config may replace them.
    return {**stored_entries, **ours, **trackio_fields}


def _above(keys: Iterable[str]) -> Iterable[str]:
    """Yield every parent of each key: ``a`` and ``a/b`` of ``a/b/c``.

    A value and a map of one name exclude each other.
    """
    for key in keys:
        parent = key.rpartition("/")[0]
        while parent:
            yield parent
            parent = parent.rpartition("/")[0]


def _leaves(config: Mapping[str, Json], above: _Path) -> Iterator[tuple[_Path, Json]]:
    """Yield path and value of each leaf; an empty map is one, or the key would be lost."""
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*above, key))
        else:
            yield (*above, key), value


def _name(path: _Path) -> str:
    """Return the plain name of an entry: role and keys, joined by ``/``."""
    role, *keys = path
    name = "/".join(map(str, keys))
    if role:
        name = f"{role}/{name}"
    # Such keys are Trackio's own fields; its Run raises for them, bulk_log would replace the field.
    if name.startswith("_"):
        return f"config{name}"
    return name


def _other_name(name: str, path: _Path, used_names: Container[str]) -> str:
    """Return another name for the entry at *path*, because *name* is taken; the same at each call.

    The text that is hashed grows until the name is free.
    """
    text = json.dumps(path)
    other_name = name
    while other_name in used_names:
        digits = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[
            :_HASH_DIGITS
        ]
        other_name = f"{name}-{digits}"
        text = f"{text} "
    return other_name
