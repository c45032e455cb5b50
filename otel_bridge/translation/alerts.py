"""Rows and the passage of time -> alerts by the rules of ``OTEL_BRIDGE_ALERTS``, once a cause. Pure, one thread.

A cause of a key begins with a value that meets a rule, and ends after `CALM_VALUES` values in a row
that do not, from each process that had one. A value that flickers around a bound is so one cause. A
cause of a role ends with its next row. Causes are stored under ``alert/`` of the state, which is
committed with the records: each alert is a record once, whatever is killed. Values that were
redelivered are dropped before they come here. Rules are watched here and not by exporters: each row
comes here once, with the keys that trackers show, and the trackers cannot judge differently.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import cast

from otel_bridge.alert_rules import AlertKind, AlertRule
from otel_bridge.records import Alert, Distribution, Record, Row, Value, axis_of
from otel_bridge.translation.decode.attributes import as_float
from otel_bridge.translation.options import SECOND_NS, TranslationOptions
from otel_bridge.translation.processes.process import Process
from otel_bridge.translation.state import (
    TranslationState,
    count,
    identity,
    named,
    number_at,
)

CALM_VALUES = 5
"""Values in a row on the good side after which a cause has ended. They are counted, since no margin
fits every key, and no time every pace."""
TOO_MANY_CAUSES = "alert/too_many_causes"
TOO_MANY_BY_RULES = "alert/too_many_by_rules"
RAISED = "alert/raised"
LAST = "alert/last"
_BY_RULES = "alert/by_rules"
_CAUSE = "alert/cause/"
_ROLE = "alert/role/"
_STALLED = "alert/stalled/"
_MAX_ALERTS = 1_000
"""Most alerts that rules raise in one run."""
# Bounds of what is stored: rules match patterns, and producers choose keys and roles.
_MAX_CAUSES = 1_000
_MAX_SOURCES = 64
_MAX_ROLES = 256
_MAX_WATCHED = 200_000
"""Most keys whose rules are remembered; beyond that all are looked up again."""
_MAX_LISTED = 10
_CHECK_NS = SECOND_NS
_CONFIRM_NS = 5 * SECOND_NS
"""Time for which a role must be overdue: by then a bridge has noticed that its process died."""
_SYSTEM = "system/"
_IN_WORDS = {">": "above", ">=": "at or above", "<": "below", "<=": "at or below"}
"""Operators in titles, which not every tracker can show as signs."""


def note_raised(state: TranslationState, alert: Alert) -> Alert:
    """Count *alert* for the report, as the last one; return it.

    The report shows how many there were, and the last one.
    """
    state.set(RAISED, number_at(state, RAISED) + 1)
    state.set(
        LAST,
        {
            "title": alert.title,
            "level": alert.level,
            "time_unix_ns": alert.time_unix_ns,
        },
    )
    return alert


class AlertWatcher:
    """Watches one run by the rules of its options.

    Args:
        state: Key space ``alert/``; counts in ``drop/``.
        options: The rules, and since when this bridge watches.
        processes: All processes of the run, as they are added.
        straggler_alerts: Callable that takes a row and returns the alerts about slow ranks that it
            raises.
    """

    def __init__(
        self,
        state: TranslationState,
        options: TranslationOptions,
        processes: Mapping[str, Process],
        straggler_alerts: Callable[[Row], list[Alert]],
    ) -> None:
        self._state = state
        self._straggler_alerts = straggler_alerts
        self._values = _ValueCauses(state, options, processes)
        self._stalls = _Stalls(state, options, processes)

    def rows(self, records: list[Record], now_unix_ns: int) -> list[Record]:
        """Return *records* with the alerts that their rows raise, each behind its row.

        Unchanged without any; alerts beyond the most of a run are counted (`_admitted`).
        """
        with_alerts: list[Record] = []
        for record in records:
            with_alerts.append(record)
            if type(record) is Row:
                self._stalls.note(record, now_unix_ns)
                with_alerts += self._admitted(self._values.row(record))
                with_alerts += self._admitted(self._straggler_alerts(record))
        return with_alerts

    def tick(self, now_unix_ns: int, steps: Mapping[str, int]) -> list[Alert]:
        """Return the alerts about roles that sent no row for too long.

        *steps* are the last ones of all axes.
        """
        return self._admitted(self._stalls.tick(now_unix_ns, steps))

    def flush(self) -> None:
        """Write what changed to the state."""
        self._values.flush()
        self._stalls.flush()

    def _admitted(self, alerts: list[Alert]) -> list[Alert]:
        """Return those of *alerts* that the limit of the run admits; the others are counted.

        Each is counted (``alert/too_many_by_rules``): a rule on very many keys must not call a
        person without end.
        """
        if not alerts:
            return alerts
        # Counted in the state, so that a restarted bridge does not grant another thousand.
        raised_before = number_at(self._state, _BY_RULES)
        admitted = alerts[: max(_MAX_ALERTS - raised_before, 0)]
        self._state.set(_BY_RULES, raised_before + len(admitted))
        if len(admitted) < len(alerts):
            count(
                self._state,
                TOO_MANY_BY_RULES,
                len(alerts) - len(admitted),
                name=alerts[len(admitted)].title,
            )
        return [note_raised(self._state, alert) for alert in admitted]


class _ValueCauses:
    """Holds causes that values began, by rule and key: process to the good values since its last bad one."""

    def __init__(
        self,
        state: TranslationState,
        options: TranslationOptions,
        processes: Mapping[str, Process],
    ) -> None:
        kinds = {AlertKind.BOUND, AlertKind.NOT_FINITE}
        rules = [rule for rule in options.alert_rules if rule.kind in kinds]
        self._state = state
        self._rules = rules
        self._processes = processes
        self._watching: dict[tuple[str | None, str], list[AlertRule]] = {}
        self._causes: dict[tuple[str, str], dict[str, int]] = {}
        self._changed: set[tuple[str, str]] = set()
        texts = {rule.text for rule in rules}
        for name, value in state.items(_CAUSE):
            rule, key, sources = cast("tuple[str, str, dict[str, int]]", value)
            # Causes of an unchanged rule go on, so that a restart of the bridge repeats no alert.
            if rule in texts:
                self._causes[rule, key] = dict(sources)
            else:  # the rule was removed
                state.delete(name)

    def row(self, row: Row) -> list[Alert]:
        """Return the alerts that *row* raises: one for each rule, whatever number of keys meets it first here.

        Empty while no value begins a cause.
        """
        if not self._rules:
            return []
        begun: dict[AlertRule, list[str]] = {}
        for key, value in row.values.items():
            # Looked up once for each key: a rule is a pattern, and a run's keys are limited.
            watched = row.role, key
            if watched not in self._watching:
                self._watching[watched] = [
                    rule for rule in self._rules if rule.watches(key, row.role)
                ]
            for rule in self._watching[watched]:
                if self._begins(rule, key, _number(value, rule), row.id):
                    begun.setdefault(rule, []).append(key)
        # It is only a cache: beyond the limit all of it is looked up again.
        if len(self._watching) > _MAX_WATCHED:
            self._watching.clear()
        return [_of_values(row, rule, keys) for rule, keys in begun.items()]

    def flush(self) -> None:
        """Write the changed causes to the state."""
        for rule, key in self._changed:
            name = f"{_CAUSE}{identity(rule, key).hex()}"
            sources = self._causes.get((rule, key))
            if sources is None:
                self._state.delete(name)
            else:
                self._state.set(name, [rule, key, dict(sources)])
        self._changed.clear()

    def _begins(self, rule: AlertRule, key: str, value: float, row_id: str) -> bool:
        """Note a value of *key*; return whether a cause begins with it.

        A cause beyond `_MAX_CAUSES` raises nothing and is counted (``alert/too_many_causes``).

        Without causes, a value that stays beyond its bound would raise an alert with every row.
        """
        cause = rule.text, key
        sources = self._causes.get(cause)
        is_met = rule.is_met(value)
        if sources is None:
            if not is_met:
                return False
            if len(self._causes) >= _MAX_CAUSES:
                count(self._state, TOO_MANY_CAUSES, name=key)
                return False
            self._causes[cause] = {_source(row_id): 0}
            self._changed.add(cause)
            return True
        if is_met or not math.isnan(value):  # NaN is on no side of a bound
            self._continue(cause, sources, _source(row_id), is_met=is_met)
        return False

    def _continue(
        self,
        cause: tuple[str, str],
        sources: dict[str, int],
        source: str,
        *,
        is_met: bool,
    ) -> None:
        """Note a further value of a key with a cause, which ends when every process that had one is calm or gone.

        Several processes may log one key: a good value of one must not end the cause of another. A
        cause knows at most `_MAX_SOURCES` of them.
        """
        if is_met:
            has_room = source in sources or len(sources) < _MAX_SOURCES
            if has_room and sources.get(source) != 0:
                sources[source] = 0
                self._changed.add(cause)
            return
        if source in sources:
            sources[source] += 1
            self._changed.add(cause)
            if sources[source] >= CALM_VALUES:
                del sources[source]
        # Processes that ended without calm values send none.
        for other_source in list(sources):
            if other_source != source and self._is_gone(other_source):
                del sources[other_source]
                self._changed.add(cause)
        if not sources:
            del self._causes[cause]
            self._changed.add(cause)

    def _is_gone(self, source: str) -> bool:
        # Rows of several processes have an empty source, of which no end is known.
        process = self._processes.get(source)
        return bool(source) and (process is None or process.status is not None)


class _Stalls:
    """Holds the time of each role's last row, and the roles about whose silence an alert was raised."""

    def __init__(
        self,
        state: TranslationState,
        options: TranslationOptions,
        processes: Mapping[str, Process],
    ) -> None:
        self._state = state
        self._rules = [
            rule for rule in options.alert_rules if rule.kind is AlertKind.STALLED
        ]
        self._processes = processes
        self._since_ns = options.watching_since_ns
        self._remote_wait_ns = options.end_of_stream_wait_ns
        self._last: dict[str, int] = named(state, _ROLE)
        self._raised = dict(state.items(_STALLED))
        self._changed: set[str] = set()
        self._overdue: dict[str, tuple[int, int]] = {}
        self._checked_ns = 0

    def note(self, row: Row, now_unix_ns: int) -> None:
        """Note that a row of a role came.

        Nothing without a rule about silence. A measurement of the machine does not count: it comes
        while the program hangs, too.
        """
        if not self._rules:
            return
        role = row.role or ""
        if row.axis is None and next(iter(row.values), "").startswith(_SYSTEM):
            return  # a bridge measured its machine
        # A producer chooses its role, so their number has a limit; those noted before go on.
        if role in self._last or len(self._last) < _MAX_ROLES:
            self._last[role] = now_unix_ns
            self._changed.add(role)

    def tick(self, now_unix_ns: int, steps: Mapping[str, int]) -> list[Alert]:
        """Return an alert for each living role that is overdue, once until its next row.

        Empty between two checks (`_CHECK_NS`), since this runs for each frame.
        """
        # Not for times before this bridge began: what it reads of them is a backlog, whose end it
        # does not know yet.
        early = (
            now_unix_ns < self._since_ns
            or 0 <= now_unix_ns - self._checked_ns < _CHECK_NS
        )
        if not self._rules or early:
            return []
        self._checked_ns = now_unix_ns
        alerts: list[Alert] = []
        living = self._living()
        for rule in self._rules:
            for role, (began_ns, remote) in living.items():
                if rule.watches_role(role):
                    alerts += self._judged(
                        rule, role, began_ns, now_unix_ns, steps, remote=remote
                    )
        return alerts

    def flush(self) -> None:
        """Write the times that changed to the state."""
        for role in self._changed:
            self._state.set(f"{_ROLE}{role}", self._last[role])
        self._changed.clear()

    def _living(self) -> dict[str, tuple[int, bool]]:
        """Return the roles of open processes that send rows: when the last one began, and whether all are remote.

        Only processes that determine the run's status send rows: children and ranks above 0 may
        send none. The last beginning counts, so that a restarted process has the rule's whole time
        for its first row.
        """
        living: dict[str, tuple[int, bool]] = {}
        for process in self._processes.values():
            if (
                process.status is None
                and not process.drained
                and process.determines_status
            ):
                role = process.role or ""
                began_ns, remote = living.get(role, (0, True))
                living[role] = (
                    max(began_ns, process.began_ns),
                    remote and process.remote,
                )
        return living

    def _judged(
        self,
        rule: AlertRule,
        role: str,
        began_ns: int,
        now_unix_ns: int,
        steps: Mapping[str, int],
        *,
        remote: bool,
    ) -> list[Alert]:
        """Return the alert of *rule* about *role*, if it has been overdue for `_CONFIRM_NS`.

        Nothing is returned before that.

        One alert is raised for one last row. Its time is stored, so that a further bridge does not
        repeat the alert.
        """
        name = f"{_STALLED}{identity(rule.text, role).hex()}"
        last_ns = max(self._last.get(role, self._since_ns), began_ns)
        # Rows that were sent while no bridge listened may still be under way.
        grace_ns = 0
        if remote:
            grace_ns = min(rule.after_ns, self._remote_wait_ns)
        overdue = now_unix_ns >= max(last_ns + rule.after_ns, self._since_ns + grace_ns)
        if not overdue or self._raised.get(name) == last_ns:
            self._overdue.pop(name, None)
            return []
        overdue_row_ns, noticed_ns = self._overdue.get(name, (0, 0))
        # First notice: the process may be dead, which its bridge finds within `_CONFIRM_NS`.
        if overdue_row_ns != last_ns:
            self._overdue[name] = last_ns, now_unix_ns
            return []
        if now_unix_ns - noticed_ns < _CONFIRM_NS:
            return []
        del self._overdue[name]
        # Committed with the alert: a kill loses both, and the next bridge raises it again.
        self._raised[name] = last_ns
        self._state.set(name, last_ns)
        return [
            _of_role(rule, role, last_ns, now_unix_ns, steps.get(axis_of(role or None)))
        ]


def _of_values(row: Row, rule: AlertRule, keys: list[str]) -> Alert:
    """Return the alert about *keys*, whose values of *row* meet *rule*: the first one with its value, ten by name.

    Its id names row and rule, so that a redelivered row gives the same alert. One alert for all
    keys, because a broken step may make thousands of values NaN.
    """
    first = keys[0]
    other_keys = keys[1:]
    text = f"{first} is {_in_words(_number(row.values[first], rule))}"
    if rule.kind is AlertKind.BOUND:
        title = f"{first} {_IN_WORDS[rule.operator]} {rule.bound:.6g}"
        level = "warn"
    else:
        title = text
        level = "error"
    if row.step is not None:
        text += f" at step {row.step}"
    if other_keys:
        text += f"; also {', '.join(other_keys[:_MAX_LISTED])}"
    if len(other_keys) > _MAX_LISTED:
        text += f" and {len(other_keys) - _MAX_LISTED} more"
    id_ = f"a:{row.id}:{identity(rule.text).hex()}"
    return Alert(
        id_,
        row.role,
        title,
        f"{text} (rule {rule.text})",
        level,
        row.step,
        row.time_unix_ns,
    )


def _in_words(value: float) -> str:
    if math.isfinite(value):
        return f"{value:.6g}"
    if math.isnan(value):
        return "NaN"
    return "infinite"


def _of_role(
    rule: AlertRule, role: str, last_ns: int, now_unix_ns: int, step: int | None
) -> Alert:
    """Return the alert that *role* has sent no row since *last_ns*.

    *step* is its last one, if it has steps.

    Its id names the role's last row, so that each silence gives one alert.
    """
    subject = role or "the run"
    minutes = (now_unix_ns - last_ns) / SECOND_NS / 60
    title = f"{subject} sends no rows"
    text = f"{subject} sent no row for {minutes:.3g} minutes, and its process has not ended"
    if step is not None:
        text += f"; its last step is {step}"
    id_ = f"a:stalled:{role}:{last_ns}:{identity(rule.text).hex()}"
    return Alert(
        id_,
        role or None,
        title,
        f"{text} (rule {rule.text})",
        "error",
        step,
        now_unix_ns,
    )


def _number(value: Value, rule: AlertRule) -> float:
    """Return the number that *rule* judges: of a distribution the mean, and for a finite one the sum.

    An integer beyond all floats counts as infinite. The sum of a distribution is NaN if any of its
    numbers is.
    """
    if isinstance(value, Distribution):
        if rule.kind is AlertKind.BOUND:
            return value.mean
        return value.sum
    return as_float(value) or 0.0


def _source(row_id: str) -> str:
    """Return the instance id of the process that sent a row.

    Only ids of native rows name it. Empty for all others: rows of several processes, and those of
    third-party points.
    """
    if row_id.startswith("m:"):
        return row_id.split(":", 2)[1]
    return ""
