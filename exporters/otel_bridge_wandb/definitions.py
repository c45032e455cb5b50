"""Sends the definitions of a run's axes to wandb: one by one while they are few, all in one entry when there are many.

wandb's service iterates over all definitions at each new one (``UpdateMetrics`` in runupserter.go).
10,000 definitions take it 100 s, during which rows wait, and again at each start. The service turns
them into the entry ``m`` of its own part of the config. Beyond `ONE_BY_ONE` names this module
writes that entry as a whole, in a config record as wandb uses it too, so that the server receives
the same. A telemetry record overwrites the entry with the definitions that were sent one by one, so
that the whole entry is sent again after each telemetry record. Source: ``ToRunConfigData`` in
runconfigmetrics.go, ``AddInternalData`` in runconfig.go.
"""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable
from typing import Any

from otel_bridge_wandb import sdk

ONE_BY_ONE = 500
"""Number of definitions that take wandb's service a quarter of a second."""
PAUSE_S = 2.0
"""Least time between two entries, unless a quarter of all names is new, because each entry contains
all names."""
_ENTRY = ("_wandb", "m")
_HIDDEN = [3, 2]
_SHOWN = [3]
"""Options of a definition: 3 it was made on purpose, 2 hidden."""


class Definitions:
    """Defines names in one open run. For one thread.

    Without wandb's private calls all names are sent one by one: slow, but complete.

    Args:
        run: ``wandb.Run``.
        one_by_one: Number of names that are defined one by one; ``None`` for all.
    """

    def __init__(self, run: Any, *, one_by_one: int | None = ONE_BY_ONE) -> None:
        self._run = run
        self._interface: Any = getattr(run, "_interface", None)
        self._publish: Callable[[Any], None] | None = getattr(
            self._interface, "_publish_config", None
        )
        self._telemetry: Callable[[Any], None] | None = getattr(
            self._interface, "_publish_telemetry", None
        )
        able = self._publish is not None and self._telemetry is not None
        self._one_by_one = one_by_one if able else None
        self._entries: list[str] = []
        self._places: dict[str, int] = {}
        self._undeclared = 0
        self._declared_s = 0.0
        self._whole = False

    def __call__(self, name: str, axis: str | None) -> None:
        """Bind *name* to *axis*, or declare *name* a hidden axis.

        Up to the limit it is sent at once. Beyond, `send_definitions` sends it with all others in
        one entry: the service takes a quadratic time for single ones. Raises wandb's own exceptions.
        """
        if self._one_by_one is None:
            sdk.define(self._run, name, axis)
            return
        self._note(name, axis)
        if len(self._entries) <= self._one_by_one:
            sdk.define(self._run, name, axis)
            return
        self._undeclared += 1
        if not self._whole:
            self._whole = True
            # Only from here on: before, wandb's own entry is the whole one.
            self._interface._publish_telemetry = self._publish_telemetry

    def send_definitions(self, *, now: bool = False) -> None:
        """Send definitions that are not sent yet; without *now*, not too often.

        Raises wandb's own exceptions. Names whose entry did not arrive are missing until the next
        one, or until the end of the run, where the writer asks the server for them.
        """
        if not self._undeclared:
            return
        since_s = time.monotonic() - self._declared_s
        if now or since_s >= PAUSE_S or self._undeclared * 4 >= len(self._entries):
            self._send()

    def _note(self, name: str, axis: str | None) -> None:
        """Add the entry of *name*, in the form that wandb's service gives it: keys are numbers of protobuf fields.

        Raises `KeyError` for an *axis* that was not declared; `WandbAxes` declares it first.
        """
        sent = sdk.undotted(name)
        if axis is None:
            entry: dict[str, object] = {"1": sent, "6": _HIDDEN, "7": []}
            # wandb counts the places of definitions from 1.
            self._places[name] = len(self._entries) + 1
        else:
            entry = {"1": sent, "5": self._places[axis], "6": _SHOWN, "7": []}
        self._entries.append(json.dumps(entry, ensure_ascii=False))

    def _publish_telemetry(self, record: Any) -> None:
        """Send wandb's telemetry record, and then the whole entry, which that record has replaced."""
        if self._telemetry is not None:
            # wandb's own first: the last entry that arrives is the one that the server keeps.
            self._telemetry(record)
            self._send()

    def _send(self) -> None:
        """Publish one entry with all definitions, because it replaces the one that the server has.

        Raises wandb's own exceptions; what is new is then part of the next entry only.
        """
        messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
        record = messages.ConfigRecord()
        item = record.update.add()
        item.nested_key.extend(_ENTRY)
        self._undeclared = 0
        self._declared_s = time.monotonic()
        item.value_json = f"[{','.join(self._entries)}]"
        if self._publish is not None:
            self._publish(record)
