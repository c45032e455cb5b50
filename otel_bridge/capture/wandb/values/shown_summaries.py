"""Computes what ``run.summary`` shows of metrics with ``define_metric(summary=…)``: ``{"max": 0.5}``, or nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from otel_bridge.metric_summaries import (
    NO_SUMMARY,
    SUMMARY_KINDS,
    KeySummary,
    SummaryDefinitions,
)

_MAX_KEYS = 10_000


class ShownSummaries:
    """Holds the summary definitions of one run, and the summary values so far. Its owner locks.

    Computed here as well as in the bridge, because the program reads ``run.summary`` at once.
    """

    def __init__(self) -> None:
        self._definitions = SummaryDefinitions()
        self._keys: dict[str, KeySummary] = {}
        self._set: set[str] = set()

    def define(
        self,
        name: str,
        kinds: Collection[str],
        summary: Mapping[str, Any],
        *,
        replace: bool,
    ) -> list[str]:
        """Note the summaries of a key or glob.

        The earlier value counts as the first one, as in wandb 0.31, unless it is a summary already.

        Args:
            name: Key, or the beginning of keys with ``*``.
            kinds: As W&B names them.
            summary: The summary, whose value of the key begins the new one.
            replace: Whether an earlier definition of *name* ends.

        Returns:
            Kinds that trackers cannot show.
        """
        # A definition after the program's own value counts again.
        self._set.discard(name)
        value = summary.get(name)
        if (
            kinds
            and name not in self._keys
            and value is not None
            and not isinstance(value, dict)
        ):
            self._keys[name] = KeySummary.begun(value)
        return self._definitions.define(name, kinds, replace=replace)

    def forget(self, keys: Iterable[str]) -> list[str]:
        """Show *keys*, which the program has set itself, as their plain last values from now on, as W&B does.

        A key without a definition, or set before, is left out. A later definition ends it, see
        `define`.

        Returns:
            Those of them that had a summary.
        """
        if not self._definitions.defined:
            return []
        had = [key for key in keys if key not in self._set and self.kinds_of(key)]
        self._set.update(had)
        return had

    def of_row(
        self, values: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], dict[str, Any]]:
        """Take the values of a row.

        A key with the kind ``none`` is shown nowhere; a dict is shown as it is.

        Returns:
            Those that the summary shows as they are, and what it shows of the others in place of
            what it had.
        """
        if not self._definitions.defined:
            return values, {}
        plain = dict(values)
        results = dict[str, Any]()
        for key, value in values.items():
            kinds = self._definitions.kinds_of(key)
            if kinds and key not in self._set and not isinstance(value, dict):
                del plain[key]
                if NO_SUMMARY not in kinds and (
                    result := self._added(key, value).result(kinds)
                ):
                    results[key] = result
        return plain, results

    def kinds_of(self, name: str) -> str:
        """Return the kinds of a key or glob for trackers, with commas.

        The last value is shown by them anyway.

        Empty for the kind ``none``, and without a definition.
        """
        kinds = self._definitions.kinds_of(name)
        if NO_SUMMARY in kinds:
            return ""
        return ",".join(kind for kind in SUMMARY_KINDS if kind in kinds - {"last"})

    def _added(self, key: str, value: Any) -> KeySummary:
        """Return the summary of a key with *value* added.

        Beyond 10,000 keys that of this value alone.
        """
        key_summary = self._keys.get(key)
        if key_summary is not None:
            key_summary.add(value)
            return key_summary
        new = KeySummary.begun(value)
        if len(self._keys) < _MAX_KEYS:
            self._keys[key] = new
        return new
