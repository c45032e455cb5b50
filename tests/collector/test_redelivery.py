"""What a Collector does to requests, through the receiver to a tracker: again, in another order, cut, merged."""

from __future__ import annotations

import random
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from otel_bridge.translation.options import TranslationOptions
from otel_bridge_collector import Receiver, ReceiverSettings
from support.bridge.bridge_doubles import options, serving, until
from support.bridge.recording_tracker import RecordingTracker
from support.otlp.otlp_samples import RUN, metrics_request, row, who
from support.waiting import ANSWER_S

EXPORT = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
ROWS = 120
ROLES = ("trainer", "explorer")


def cut(body: bytes, at: int) -> tuple[bytes, bytes]:
    """Cut one request of one scope in two, by metrics, as a batch with ``max_size`` does: rows are in pieces."""
    halves = (
        ExportMetricsServiceRequest.FromString(body),
        ExportMetricsServiceRequest.FromString(body),
    )
    del halves[0].resource_metrics[0].scope_metrics[0].metrics[at:]
    del halves[1].resource_metrics[0].scope_metrics[0].metrics[:at]
    return halves[0].SerializeToString(), halves[1].SerializeToString()


def requests(chance: random.Random) -> list[bytes]:
    made: list[bytes] = []
    for role in ROLES:
        for seq in range(1, ROWS + 1):
            values = {"loss": seq / 2, "reward": float(seq)}
            body = metrics_request((who(f"i-{role}", role), [row(seq, values)]))
            made += (
                cut(body, chance.randint(1, 2)) if chance.random() < 0.3 else (body,)
            )
    return made


@pytest.mark.parametrize("seed", range(4))
def test_requests_again_mixed_cut_and_merged_leave_every_row_whole_and_once(
    tmp_path: Path, seed: int
) -> None:
    chance, recorder = random.Random(seed), RecordingTracker()
    sent = requests(chance)
    sent += chance.sample(sent, len(sent) // 3)
    for at in range(
        0, len(sent) - 8, 8
    ):  # order is lost within a window, as by several consumers of a queue
        window = sent[at : at + 8]
        chance.shuffle(window)
        sent[at : at + 8] = window
    receiver = Receiver(
        ReceiverSettings.from_environment({"OTEL_BRIDGE_FSYNC": "0"}, tmp_path)
    )
    how = options(
        ("memory", recorder),
        exporters=dict.fromkeys(("metrics", "traces", "logs"), ("memory",)),
        translation=TranslationOptions(),  # on a busy machine a piece follows late
    )
    try:
        with (
            serving(tmp_path, how),
            grpc.insecure_channel(
                receiver.grpc_endpoint.removeprefix("http://")
            ) as channel,
        ):
            export = channel.unary_unary(EXPORT)
            while sent:
                count = chance.randint(1, 4)
                export(
                    b"".join(sent[:count]), timeout=ANSWER_S
                )  # requests joined are one request of all their resources
                del sent[:count]
            until(lambda: len(recorder.run(RUN).rows) >= ROWS * len(ROLES))
    finally:
        receiver.stop()

    held = recorder.run(RUN)
    assert held.repeated == 0
    found = {one.id: dict(one.values) for one in held.rows.values()}
    assert found == {
        f"m:i-{role}:{seq}": {f"{role}/loss": seq / 2, f"{role}/reward": float(seq)}
        for role in ROLES
        for seq in range(1, ROWS + 1)
    }
