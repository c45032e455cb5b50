"""A flood of run ids: the receiver makes no more run folders than it may, and says so for good."""

from __future__ import annotations

from pathlib import Path

from google.rpc.status_pb2 import Status as RpcStatus
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)

from otel_bridge.journal.folder import run_folders
from otel_bridge_collector import Receiver, ReceiverSettings
from support.collector.service_senders import post
from support.otlp.otlp_samples import metrics_request, row, who


def rows_of(*run_ids: str) -> bytes:
    return metrics_request(
        *(
            ({**who("i1"), "rl.run.id": run_id}, [row(1, {"loss": 0.5})])
            for run_id in run_ids
        )
    )


def test_runs_beyond_the_limit_are_rejected_for_good_and_the_others_go_on(
    tmp_path: Path,
) -> None:
    env = {"OTEL_BRIDGE_MAX_RUNS": "2"}
    receiver = Receiver(
        ReceiverSettings.from_environment(env, tmp_path, grpc_port=None)
    )
    try:
        taken = [
            post(receiver.http_endpoint, rows_of(run_id))[0] for run_id in ("a", "b")
        ]
        status, headers, body = post(receiver.http_endpoint, rows_of("c"))
        mixed = post(receiver.http_endpoint, rows_of("c", "a"))
        (refused,) = receiver.metrics()[1].samples
    finally:
        receiver.stop()

    said = RpcStatus.FromString(body)
    assert (taken, status, "retry-after" in headers, said.code) == (
        [200, 200],
        400,
        False,
        8,
    )
    assert list(said.details) == []
    assert said.message == (
        f"run c is refused: {tmp_path} has 2 runs, at most 2 (OTEL_BRIDGE_MAX_RUNS); "
        "delete folders of ended runs, or raise it"
    )
    partial = ExportMetricsServiceResponse.FromString(mixed[2]).partial_success
    assert (mixed[0], partial.rejected_data_points > 0, partial.error_message) == (
        200,
        True,
        said.message,
    )
    assert refused.labels == {"reason": "too_many_runs"}
    assert [folder.run_id for folder in run_folders(tmp_path)] == ["a", "b"]
