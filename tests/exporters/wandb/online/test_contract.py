"""The contract of writers, held by the online W&B writer: the real SDK against the stand-in server."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from otel_bridge.exporter import Exporter, RunInfo, RunWriter, degraded_of
from otel_bridge.records import Row, run_id_of
from otel_bridge.testing import Contents, samples
from otel_bridge.testing.contents import scalar_text
from otel_bridge.testing.contract import WriterContract
from otel_bridge.testing.contract.fixtures import ReadBack
from otel_bridge_wandb import exporter as wandb_exporter
from support.trackers.wandb_backend.server import WandbServer
from support.trackers.wandb_reading import STATUSES, contents_of


@pytest.mark.slow
class TestOnlineWandb(WriterContract):
    target = "otel_bridge_wandb:exporter"

    def leaves_open(self, writer: RunWriter) -> bool:
        return not any(
            "shows a run as finished" in sentence for sentence in degraded_of(writer)
        )

    @pytest.fixture
    def server(self) -> Iterator[WandbServer]:
        with WandbServer() as server:
            yield server
            assert (server.errors, server.resolver.unknown) == ([], [])

    @pytest.fixture
    def run(self, tmp_path: Path, request: pytest.FixtureRequest) -> RunInfo:
        # The bridge names all keys known so far at each open; W&B forgets the axes of those that are not named.
        name = f"{request.node.name}-{os.urandom(4).hex()}"
        run_id = run_id_of("contract", name)
        rows = [
            record
            for record in [*samples.job(), *samples.rows(1)]
            if isinstance(record, Row)
        ]
        keys = {key: str(row.axis) for row in rows for key in row.values}
        return RunInfo(
            id=run_id,
            project="contract",
            name=name,
            folder=tmp_path / "runs" / run_id,
            keys=keys,
        )

    @pytest.fixture
    def exporter(self) -> Exporter:
        return wandb_exporter

    @pytest.fixture
    def environment(
        self, server: WandbServer, monkeypatch: pytest.MonkeyPatch
    ) -> Mapping[str, str]:
        environment = {
            **server.environment(),
            "OTEL_BRIDGE_WANDB_TRANSMIT_S": "1",
            "OTEL_BRIDGE_WANDB_POLL_S": "0.1",
        }
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return environment

    @pytest.fixture
    def read_back(self, server: WandbServer) -> ReadBack:
        def read(run: RunInfo) -> Contents:
            held = server.run(run.id)
            tables = {
                key: server.table(run.id, key)
                for key in {
                    re.sub(r"_\d+$", "", key)
                    for row in held.history
                    for key in row
                    if "rollouts" in key
                }
            }
            axes = {name: metric.axis for name, metric in held.metrics.items()}
            status = None if held.exit_code is None else STATUSES[held.exit_code]
            contents = contents_of(held.history, axes, tables, held.config, status)
            contents.alerts.extend(
                (alert["title"], alert["severity"].lower()) for alert in held.alerts
            )
            contents.summary.update(
                {key: scalar_text(value) for key, value in held.summary.items()}
            )
            return contents

        return read
