"""The writer of one exporter from its opening to its closing: given the configs, asked what its tracker holds.

For the exporter's own thread.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence

from otel_bridge.bridge.ledger import Ledger
from otel_bridge.bridge.standing import Standing
from otel_bridge.bridge.tables import Destination
from otel_bridge.bridge.view import View
from otel_bridge.bridge.window import Describe, OpenWriter, counted
from otel_bridge.errors import PermanentError
from otel_bridge.exporter import Exporter, ExporterSettings, RunWriter, found_of, put_off_of, tracker_run_id_of
from otel_bridge.records import Json


class WriterLife:
    """Opens, asks and closes the writer.

    Args:
        name: The exporter.
        standing: Where it stands, moved by what the tracker turns out to hold.
        ledger: The run's ledger.
        view: Reads it for the exporter's thread.
        describe: Tells the run.
        say: Takes one line for the log.

    Attributes:
        opened: The open writer, ``None`` when there is none.
    """

    def __init__(
        self,
        name: str,
        standing: Standing,
        ledger: Ledger,
        *,
        view: View,
        describe: Describe,
        say: Callable[[str], None],
    ) -> None:
        self._name, self._standing, self._ledger, self._view = name, standing, ledger, view
        self._describe, self._say = describe, say
        self.opened: OpenWriter | None = None

    def open(
        self, target: tuple[Exporter, ExporterSettings], at: Destination, kinds: Sequence[int]
    ) -> OpenWriter | None:
        """Open the writer; ``None``: *written* moved, since the tracker holds more or less than was noted."""
        exporter, settings = target
        if not self._standing.failing:  # a failing one is failing until it has written something
            self._standing.show("writing")
        given, run = self._describe(self._view, reopened=bool(at.ended))
        writer = exporter.open(run, settings, self._ledger.memory(at.id))
        opened = self.opened = OpenWriter(writer, given, tells_safe=False)
        try:
            held = writer.safe()
            for role, config in run.configs.items():
                self._give_config(writer, role, config)
            opened.tells_safe, moved = held is not None, False
            self._standing.found(found_of(writer))
            at = dataclasses.replace(
                at, opened=True, ended=0, end_status=None, url=writer.url, tracker_run_id=tracker_run_id_of(writer)
            )
            if held is not None:
                start = max(min(held, self._ledger.position), self._view.oldest() - 1)
                moved = start != at.written
                at = dataclasses.replace(counted(self._view, kinds, at, start), written=start, safe=start)
            self._standing.save(at)
        except BaseException:
            self.close()
            raise
        return None if moved else opened

    def _give_config(self, writer: RunWriter, role: str | None, config: Mapping[str, Json]) -> None:
        try:
            writer.write_config(role, config)
        except PermanentError as exc:
            self._say(f"{self._name}: the config of role {role!r} is refused for good: {exc}")

    def look_at_safe(self, opened: OpenWriter, at: Destination) -> None:
        """Ask the writer how far its tracker's store is, and note it."""
        opened.looked_s = time.monotonic()
        held = opened.writer.safe()
        if held is None or held >= opened.last:
            held = at.written
        if held > at.safe:
            self._standing.save(dataclasses.replace(at, safe=min(held, at.written)))

    def catch_up(self, opened: OpenWriter) -> bool:
        """Let the writer do a little of what it put off; say whether nothing is left of it."""
        done = opened.caught_up()
        self._standing.put_off(put_off_of(opened.writer))
        return done

    def close(self) -> bool:
        """Close the writer, if one is open; say whether that failed."""
        opened, self.opened = self.opened, None
        if opened is not None:
            try:
                opened.writer.close()
            except Exception as exc:  # noqa: BLE001  # it is gone either way
                self._say(f"{self._name}: closing its writer failed: {exc}")
                return True
        return False
