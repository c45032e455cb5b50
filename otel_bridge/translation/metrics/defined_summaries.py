"""Rows -> summaries of the keys that a program has defined to have some: ``acc.max``, at each end of the run. Pure.

They are computed here, over the rows of all processes and attempts, so that a kill of the trainer
loses none. Owns ``metric-summary/of/<name>`` (kinds, time, instance, event number) and
``metric-summary/key/<key>`` of the state. What was computed lies beside the summaries that programs
set, so that a writer that is opened later shows it too.
"""

from __future__ import annotations

from dataclasses import astuple, replace

from otel_bridge.metric_summaries import NO_SUMMARY, KeySummary, SummaryDefinitions
from otel_bridge.records import End, Json, Record, Row
from otel_bridge.translation.decode.rows import full_key
from otel_bridge.translation.metrics.latest_values import Origin, ValuesEvent
from otel_bridge.translation.metrics.summaries import Summaries
from otel_bridge.translation.state import TranslationState, count, named

TOO_MANY = "metric-summary/too_many_keys"
_DEFINITION = "metric-summary/of/"
_KEY = "metric-summary/key/"
_MAX_KEYS = 10_000
_COMPUTED = Origin(0, "", 0)
"""Origin of the computed values: older than any value that a program sets."""
_NUMBERS = frozenset({int, float})


class DefinedSummaries:
    """Holds summaries of one run's keys.

    Attributes:
        defined: Whether any key has one.
    """

    def __init__(self, state: TranslationState) -> None:
        self._state = state
        self._summary = Summaries(state)
        self._definitions = SummaryDefinitions()
        self._origins: dict[str, Origin] = {}
        self._keys: dict[str, KeySummary] = {}
        self._changed: set[str] = set()
        for name, (kinds, *origin) in named(state, _DEFINITION).items():
            self._define(name, kinds, Origin(*origin))
        for key, stored in named(state, _KEY).items():
            self._keys[key] = KeySummary(*stored)
        self.defined = self._definitions.defined

    def define(self, event: ValuesEvent) -> None:
        """Take definitions: name, which may end with ``*``, to kinds with commas.

        The later one of a name holds.

        A value that is not a text is ignored, an older definition too. Beyond `_MAX_KEYS` names a
        new one is dropped and counted (``metric-summary/too_many_keys``).

        A run that is resumed defines its summaries anew, and may have changed them.
        """
        for key, kinds in event.values.items():
            name = full_key(event.role, key)
            last_origin = self._origins.get(name)
            if not isinstance(kinds, str) or (
                last_origin is not None and not event.origin.replaces(last_origin)
            ):
                continue
            if last_origin is None and len(self._origins) >= _MAX_KEYS:
                count(self._state, TOO_MANY, name=name)
                continue
            origin = event.origin
            self._define(name, kinds, origin)
            self._state.set(
                _DEFINITION + name,
                [kinds, origin.time_unix_ns, origin.instance, origin.seq],
            )
        self.defined = self._definitions.defined

    def rows(self, records: list[Record]) -> list[Record]:
        """Take the rows in *records*.

        Return *records* with the summaries before the end of the run.
        """
        with_summaries: list[Record] = []
        for record in records:
            if type(record) is Row:
                self._take(record)
            # Before the end, with which a writer closes the tracker's run.
            elif type(record) is End:
                with_summaries += self._summaries(record)
            with_summaries.append(record)
        return with_summaries

    def flush(self) -> None:
        """Write what changed to the state."""
        for key in self._changed:
            self._state.set(_KEY + key, [*astuple(self._keys[key])])
        self._changed.clear()

    def _define(self, name: str, kinds: str, origin: Origin) -> None:
        self._definitions.define(name, kinds.split(","), replace=True)
        self._origins[name] = origin

    def _take(self, row: Row) -> None:
        """Add the numbers of *row* to the summaries of their keys.

        A new key beyond `_MAX_KEYS` is counted (``metric-summary/too_many_keys``) and has none; its
        values are shown all the same.
        """
        for key, value in row.values.items():
            # By type: a bool is an int in Python, and has no minimum or mean to show.
            if type(value) not in _NUMBERS or not self._definitions.kinds_of(key):
                continue
            summary = self._keys.get(key)
            if summary is not None:
                summary.add(value)
            elif len(self._keys) < _MAX_KEYS:
                self._keys[key] = KeySummary.begun(value)
            else:
                count(self._state, TOO_MANY, name=key)
                continue
            self._changed.add(key)

    def _summaries(self, end: End) -> list[Record]:
        """Return the summaries that changed since the run last ended; nothing when none did.

        Beyond the keys that a run's summary may have they are counted (``summary/too_many_keys``).
        Without the kind ``last``: trackers show the last value anyway. A value that a program set
        under such a name itself stays.
        """
        values: dict[str, Json] = {}
        for key, summary in self._keys.items():
            kinds = self._definitions.kinds_of(key)
            if NO_SUMMARY in kinds:
                continue
            for kind, value in summary.result(kinds - {"last"}).items():
                values[f"{key}.{kind}"] = value
        records: list[Record] = []
        for changed in self._summary.merge(ValuesEvent(_COMPUTED, None, values)):
            # All have one origin: values that return to earlier ones would return to an id as well.
            records.append(
                replace(changed, id=f"d:{end.id}", time_unix_ns=end.time_unix_ns)
            )
        return records
