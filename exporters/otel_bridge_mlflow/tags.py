"""Sets the tags of an MLflow run: the run of otel-bridge, its program, its roles, and its summary.

An alert is a tag and a point of a metric. Numbers of a summary are metrics, because MLflow sorts
and compares runs by metrics; texts and bools are tags.

Names of MLflow's own tags: mlflow/utils/mlflow_tags.py. Tags that a person may change in the UI
(the note) and tags that another bridge of the run has set (host, commit) are never overwritten.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import cast

from otel_bridge import semconv
from otel_bridge.errors import ExporterError
from otel_bridge.exporter import RunInfo, WriterMemory
from otel_bridge.records import Alert, MediaRecord, RolloutRecord, Row, Scalar
from otel_bridge_mlflow.connection import Connection
from otel_bridge_mlflow.errors import as_bridge_errors
from otel_bridge_mlflow.keys import Names
from otel_bridge_mlflow.metrics import MetricWriter, stored_number
from otel_bridge_mlflow.traces.spans import clean_text

_SUMMARY = "summary/"
_ALERT = "alert/"
_ALERTS = "alerts/"
_SOURCE = {
    "mlflow.source.name": semconv.PROCESS_COMMAND,
    "mlflow.source.git.commit": semconv.VCS_REVISION,
    "mlflow.user": semconv.PROCESS_OWNER,
    semconv.HOST_NAME: semconv.HOST_NAME,
}


def missing_tags(
    run: RunInfo, limit: int, present: Mapping[str, str]
) -> dict[str, str]:
    """Return the tags to set on *run*, whose MLflow run has *present*; values are cut to *limit*.

    Those of otel-bridge follow the run. A note, and facts of the first process, are set once: a
    person may have changed them, or another bridge may have set its own. Empty when the run has all
    of them.
    """
    tags = {
        semconv.RUN_ID: run.id,
        semconv.RUN_GROUP: run.group,
        semconv.RUN_JOB_TYPE: run.job_type,
        semconv.RUN_TAGS: ",".join(run.tags),
        semconv.BRIDGE_VERSION: _version(),
    }
    if "mlflow.note.content" not in present:
        tags["mlflow.note.content"] = run.notes
    if semconv.PROCESS_COMMAND in run.identity and "mlflow.source.type" not in present:
        tags["mlflow.source.type"] = "LOCAL"
    for tag, fact in _SOURCE.items():
        if tag not in present:
            tags[tag] = run.identity.get(fact)
    missing: dict[str, str] = {}
    for key, value in tags.items():
        # An empty value is not set: a tag without text shows nothing in MLflow.
        if value and present.get(key) != value[:limit]:
            missing[key] = value[:limit]
    return missing


class Roles:
    """Maintains the tag that lists the roles of a run, to which several bridges may add.

    Args:
        connection: The store.
        run_id: MLflow's run id.
    """

    def __init__(self, connection: Connection, run_id: str) -> None:
        self._connection = connection
        self._run_id = run_id
        self._mine: set[str] = set()

    def note(self, records: Sequence[Row | RolloutRecord | MediaRecord]) -> None:
        """Add the roles of *records* to the tag, before the records; nothing when it has them.

        Raises:
            RetryableError: As `Connection.request`.
            BlockedError: As `Connection.request`.
        """
        new = {record.role for record in records if record.role} - self._mine
        if not new:
            return
        self._mine |= new
        try:
            self.confirm()
        except ExporterError as exc:
            # Not in the tag yet, so that the repeated call adds them.
            self._mine -= new
            exc.position = records[0].position
            raise

    def confirm(self) -> None:
        """Add this bridge's roles again if the tag lacks them, because another bridge set the tag at the same time.

        Raises:
            RetryableError: As `Connection.request`.
            BlockedError: As `Connection.request`.
        """
        client = self._connection.client
        with as_bridge_errors(f"tagging MLflow run {self._run_id}"):
            # Read before each change: MLflow has no call that adds to a tag.
            roles = _listed(client.get_run(self._run_id).data.tags)
            if not self._mine <= roles:
                text = ",".join(sorted(roles | self._mine))
                limit = self._connection.rules.tag_length
                client.set_tag(self._run_id, semconv.ROLES, text[:limit])


def alert_tags(alerts: Sequence[Alert]) -> dict[str, str]:
    """Return the tags that show *alerts*: ``alert/<title>`` to level, time and text.

    The last one of a title.
    """
    tags: dict[str, str] = {}
    for alert in alerts:
        utc = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(alert.time_unix_ns / 1e9))
        text = f"{alert.level} at {utc}: {alert.text}"
        tags[f"{_ALERT}{alert.title}"] = text.removesuffix(": ")
    return tags


class SummaryWriter:
    """Shows the summary of one MLflow run under ``summary/<key>``.

    Args:
        connection: The store.
        run_id: MLflow's run id.
        metrics: Writer of the run's metrics.
        names: Names of the tags.
        memory: Keeps the numbers of the alerts.
    """

    def __init__(
        self,
        connection: Connection,
        run_id: str,
        metrics: MetricWriter,
        names: Names,
        memory: WriterMemory,
    ) -> None:
        self._connection = connection
        self._run_id = run_id
        self._metrics = metrics
        self._names = names
        self._memory = memory
        self._numbers: dict[str, float] | None = None
        self._tags: dict[str, str] = {}

    def write(self, values: Mapping[str, Scalar]) -> None:
        """Write what differs from what the run shows: numbers as metrics, texts and bools as tags.

        A text that became a number loses its tag, or both would be shown.

        Raises:
            PermanentError: As `MetricWriter.write`; the texts are not written then.
            RetryableError: As `Connection.request`.
            BlockedError: As `Connection.request`.
        """
        client = self._connection.client
        doing = f"writing the summary of MLflow run {self._run_id}"
        # Read once: what is written later is known, and all values are given again at every
        # opening.
        if self._numbers is None:
            with as_bridge_errors(doing):
                data = client.get_run(self._run_id).data
                self._numbers = dict(data.metrics)
                self._tags = dict(data.tags)
        numbers: dict[str, float] = {}
        texts: dict[str, str] = {}
        for key, value in values.items():
            # bool is an int, and is shown as a tag.
            if isinstance(value, (bool, str)):
                texts[f"{_SUMMARY}{key}"] = str(value)
            else:
                numbers[f"{_SUMMARY}{key}"] = value
        self._write_numbers(numbers)
        self._names.add_keys(texts)
        self._names.store()
        with as_bridge_errors(doing):
            for key, text in texts.items():
                self._set_tag(self._names.name(key), text)
            # Behind the metric: a kill in between shows both, and the next opening deletes the tag.
            for key in numbers:
                name = self._names.known(key) or key
                if name in self._tags:  # it was a text before
                    try:
                        client.delete_tag(self._run_id, name)
                    except Exception:
                        # It may be gone, and only the answer be lost: the repeated call looks.
                        self._numbers = None
                        raise
                    del self._tags[name]

    def write_alerts(self, alerts: Sequence[Alert]) -> None:
        """Show *alerts* as tags, and as metrics that count up.

        One that comes again sets the same tag and point.

        Raises:
            PermanentError: As `MetricWriter.write`.
            RetryableError: As `Connection.request`.
            BlockedError: As `Connection.request`.
        """
        texts = alert_tags(alerts)
        self._names.add_keys(texts)
        self._names.store()
        with as_bridge_errors(f"writing alerts of MLflow run {self._run_id}"):
            for key, text in texts.items():
                self._set_tag(self._names.name(key), text)
        # Tags first: they repeat as they are, and the points are recognised by number and time.
        self._metrics.write([self._point(alert) for alert in alerts])

    def _point(self, alert: Alert) -> Row:
        """Return the point of *alert* in the run's time line: ``alerts/<level>``, the number of such alerts so far.

        The number is stored before it is written, so that an alert that comes again has the same
        number. Raises `JournalError` when the memory cannot be written.
        """
        key = f"{_ALERTS}{alert.level}"
        numbered: list[int | str] = json.loads(self._memory.get(key) or b"[]")
        # A dead letter that is tried again has no position.
        place = alert.position or alert.id
        if place not in numbered:
            numbered.append(place)
            self._memory.put(key, json.dumps(numbered).encode())
        number = numbered.index(place) + 1
        step = number if alert.step is None else alert.step
        return Row(
            alert.id,
            None,
            step,
            None,
            alert.time_unix_ns,
            {key: number},
            position=alert.position,
        )

    def _set_tag(self, name: str, text: str) -> None:
        """Set a tag of the run, unless it has that value; raises MLflow's own errors."""
        value = clean_text(text)[: self._connection.rules.tag_length]
        if self._tags.get(name) != value:
            self._connection.client.set_tag(self._run_id, name, value)
            self._tags[name] = value

    def _write_numbers(self, numbers: Mapping[str, float]) -> None:
        """Write the *numbers* that changed as points at step 0; raises as `MetricWriter.write`.

        They count as shown only once they are written, so that a repeated call writes them again.
        """
        stored = cast("dict[str, float]", self._numbers)
        changed: dict[str, float] = {}
        for key, value in numbers.items():
            shown_number = stored.get(self._metrics.name_of(key))
            # By their text, because NaN is not equal to itself.
            if repr(shown_number) != repr(stored_number(value)):
                changed[key] = float(value)
        if changed:
            # Step 0: the newest value of a key at one step is the one with the newest time.
            self._metrics.write([Row(_SUMMARY, None, 0, None, time.time_ns(), changed)])
            # By the names that the keys have got now, as MLflow returns them.
            for key, value in changed.items():
                stored[self._metrics.name_of(key)] = stored_number(value)


def _listed(tags: Mapping[str, str]) -> set[str]:
    return {role for role in tags.get(semconv.ROLES, "").split(",") if role}


def _version() -> str | None:
    """Return the version of otel-bridge, ``None`` when it runs without being installed."""
    try:
        return version("otel-bridge")
    except PackageNotFoundError:
        return None
