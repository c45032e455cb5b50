"""The exporters of one run at work, and which of their destinations the ledger takes for named."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from otel_bridge.bridge.delivery.context import DeliveryContext, DeliveryRequests
from otel_bridge.bridge.delivery.delivery import Delivery
from otel_bridge.bridge.delivery.exporter_set import ExporterSet
from otel_bridge.bridge.delivery.worker import ExporterWorker
from otel_bridge.bridge.exporter_environment import ExporterEnvironment
from otel_bridge.bridge.ledger.run_description import RunDescription
from otel_bridge.bridge.ledger.run_ledger import Ledger
from otel_bridge.exporter import Exporter
from otel_bridge.journal.folder import RunFolder
from support.bridge.bridge_doubles import options, until
from support.bridge.recording_tracker import RecordingTracker
from support.waiting import HANG_S


def test_an_exporter_that_gets_its_destination_while_others_are_named_is_named_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, may_begin = Ledger(tmp_path / "ledger.sqlite"), threading.Event()
    environment = options(
        ("old", RecordingTracker()), ("new", RecordingTracker())
    ).exporter_env
    former = ledger.destination("former", {})

    def load(name: str) -> Exporter:
        assert name == "old" or may_begin.wait(20)
        return environment.load(name)

    workers = lanes_of(ledger, replace(environment, load=load))
    workers.choose({"old": ("metrics",), "new": ("metrics",)}, {}, {})
    until(lambda: workers.by_name["old"].exporter_state.resolved)
    real = ledger.name_destinations

    def after_the_new_one_began(
        ids: Collection[int], **unresolved: Collection[str]
    ) -> None:
        may_begin.set()
        until(lambda: workers.by_name["new"].exporter_state.resolved)
        real(ids, **unresolved)

    monkeypatch.setattr(ledger, "name_destinations", after_the_new_one_began)
    workers.mark_named()

    assert {item.exporter: item.named for item in ledger.view().destinations()} == {
        former.exporter: False,
        "old": True,
        "new": True,
    }
    workers.stop()
    assert workers.join(time.monotonic() + HANG_S) == []
    ledger.close()


def lanes_of(ledger: Ledger, environment: ExporterEnvironment) -> ExporterSet:
    def create(
        name: str, destination: Mapping[str, str], requests: DeliveryRequests
    ) -> ExporterWorker:
        context = DeliveryContext(
            name,
            ledger,
            resolve=lambda: environment.resolve(name, destination, run_id="r"),
            describe=RunDescription(RunFolder(Path(), "r"), local=True),
            log_line=lambda _: None,
        )
        return Delivery(context, requests)

    return ExporterSet(ledger, create, lambda _: None)
