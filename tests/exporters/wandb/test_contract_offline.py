"""The contract of writers, held by the offline W&B writer on the real SDK."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from otel_bridge.exporter import Exporter, RunInfo, RunWriter, degraded_of
from otel_bridge.records import Status
from otel_bridge.testing import Contents, samples
from otel_bridge.testing.contract import WriterContract
from otel_bridge.testing.contract.compare import same, same_scalars
from otel_bridge.testing.contract.fixtures import Open, ReadBack
from otel_bridge.testing.delivery import deliver
from otel_bridge_wandb import exporter as wandb_exporter
from support.trackers.wandb_reading import offline_contents


class TestOfflineWandb(WriterContract):
    target = "otel_bridge_wandb:exporter"

    def leaves_open(self, writer: RunWriter) -> bool:
        return not any(
            "shows a run as finished" in sentence for sentence in degraded_of(writer)
        )

    @pytest.fixture
    def exporter(self) -> Exporter:
        return wandb_exporter

    @pytest.fixture
    def environment(self, tmp_path: Path) -> Mapping[str, str]:
        return {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path / "store")}

    @pytest.fixture
    def read_back(self, tmp_path: Path) -> ReadBack:
        def read(run: RunInfo) -> Contents:
            return offline_contents(tmp_path / "store", run.id)

        return read

    def test_a_run_that_ended_is_opened_again_and_goes_on(
        self, opened: Open, run: RunInfo, read_back: ReadBack
    ) -> None:
        # An offline run is never safe, so each new writer is given all records again; the contract gives the last none.
        records = samples.placed(samples.rows(6))

        for given, status in ((records[:3], Status.FAILED), (records, Status.FINISHED)):
            writer = opened(
                configs={"trainer": {"lr": 0.1}}, reopened=status is Status.FINISHED
            )
            deliver(writer, given, held=writer.durable())
            writer.end(status)
            writer.close()

        contents = read_back(run)
        same_scalars(contents, records)
        same(
            (contents.status, contents.config),
            (Status.FINISHED, {"trainer/lr": "0.1"}),
            "status and config",
        )
