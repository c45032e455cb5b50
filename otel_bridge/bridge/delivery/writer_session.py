"""The writer of one exporter from its opening to its closing: given the configs, asked what its tracker holds.

For the exporter's own thread.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence

from otel_bridge.bridge.delivery.batch import Describe, OpenWriter, counted
from otel_bridge.bridge.delivery.position import DeliveryPosition
from otel_bridge.bridge.ledger.ledger import Ledger
from otel_bridge.bridge.ledger.queries import LedgerView
from otel_bridge.bridge.ledger.rows import Destination
from otel_bridge.capabilities import incompatibility
from otel_bridge.errors import PermanentError
from otel_bridge.exporter import (
    Exporter,
    ExporterSettings,
    RunInfo,
    RunWriter,
    backlog_of,
    degraded_of,
    found_of,
    tracker_run_id_of,
)
from otel_bridge.records import Json
from otel_bridge.text.addresses import without_credentials


class WriterSession:
    """Opens, asks and closes the writer.

    Args:
        name: The exporter.
        position: Where it stands, moved by what the tracker turns out to hold.
        ledger: The run's ledger.
        view: Reads it for the exporter's thread.
        describe: Describes the run.
        say: Takes one line for the log.

    Attributes:
        opened: The open writer, ``None`` when there is none.
    """

    def __init__(
        self,
        name: str,
        position: DeliveryPosition,
        ledger: Ledger,
        *,
        view: LedgerView,
        describe: Describe,
        say: Callable[[str], None],
    ) -> None:
        self._name, self._position, self._ledger, self._view = name, position, ledger, view
        self._describe, self._say = describe, say
        self._names: tuple[str, str] | None = None
        self.opened: OpenWriter | None = None

    def open(
        self, target: tuple[Exporter, ExporterSettings], at: Destination, kinds: Sequence[int]
    ) -> OpenWriter | None:
        """Open the writer; ``None``: *written* moved, since the tracker holds more or less than was noted."""
        exporter, settings = target
        if not self._position.failing:  # a failing one is failing until it has written something
            self._position.show("writing")
        given, run = self._describe(self._view, reopened=bool(at.ended))
        self._names = run.project, run.name
        writer = self._opened(exporter, settings, run, at)
        opened = self.opened = OpenWriter(writer, given, reports_durable=False)
        try:
            held = writer.durable()
            for role, config in run.configs.items():
                self._give_config(writer, role, config)
            moved = False
            if held is not None:
                opened.begin_reporting()
            self._position.found(found_of(writer))
            at = dataclasses.replace(
                at, opened=True, ended=0, end_status=None, url=without_credentials(writer.url or "") or None,
                tracker_run_id=tracker_run_id_of(writer), degraded=self._degraded(writer, at.degraded),
            )  # fmt: skip
            if held is not None:
                start = max(min(held, self._ledger.position), self._view.oldest() - 1)
                moved = start != at.written
                at = dataclasses.replace(counted(self._view, kinds, at, start), written=start, durable=start)
            self._position.save(at)
        except BaseException:
            self.close()
            raise
        return None if moved else opened

    def _opened(self, exporter: Exporter, settings: ExporterSettings, run: RunInfo, at: Destination) -> RunWriter:
        try:
            return exporter.open(run, settings, self._ledger.memory(at.id))
        except Exception as exc:
            packages = " ".join(exporter.requires)
            install = f"pip install --upgrade {packages}" if packages else ""
            blocked = incompatibility(exc, packages or f"the exporter {self._name}", install)
            if blocked is None:
                raise
            raise blocked from exc

    def _degraded(self, writer: RunWriter, known: Sequence[str]) -> tuple[str, ...]:
        """Return what *writer* does with less, and log each sentence that is not *known*."""
        degraded = degraded_of(writer)
        for sentence in degraded:
            if sentence not in known:
                self._say(f"{self._name}: {sentence}")
        return degraded

    def _give_config(self, writer: RunWriter, role: str | None, config: Mapping[str, Json]) -> None:
        try:
            writer.write_config(role, config)
        except PermanentError as exc:
            self._say(f"{self._name}: the config of role {role!r} is refused for good: {exc}")

    def is_renamed(self) -> bool:
        """Return whether the run has another project or name now than when its writer was opened."""
        if self.opened is None:
            return False
        _, run = self._describe(self._view, reopened=False)
        return self._names != (run.project, run.name)

    def look_at_durable(self, opened: OpenWriter, at: Destination) -> None:
        """Ask the writer how far its tracker's store is, and note it."""
        opened.looked(time.monotonic())
        held = opened.writer.durable()
        if held is None or held >= opened.last:
            held = at.written
        if held > at.durable:
            self._position.save(dataclasses.replace(at, durable=min(held, at.written)))

    def process_backlog(self, opened: OpenWriter) -> bool:
        """Let the writer do a little of what it deferred; return whether nothing is left of it."""
        done = opened.caught_up()
        self._position.backlog(backlog_of(opened.writer))
        return done

    def close(self) -> bool:
        """Close the writer, if one is open; return whether that failed."""
        opened, self.opened = self.opened, None
        if opened is not None:
            try:
                opened.writer.close()
            except Exception as exc:  # noqa: BLE001  # it is gone either way
                self._say(f"{self._name}: closing its writer failed: {exc}")
                return True
        return False
