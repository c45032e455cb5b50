"""Rollouts a second into an MLflow server and into Trackio's store, against what each takes at most.

MLflow: the very requests that the exporter made (50 rollouts each, of four spans and 6 KB), with other trace ids,
posted by a bare HTTP client; and, for information, the same spans without tags, session and chat view. The rollouts
have no rewards, which a server takes one by one: `rollout_rewards` measures them. Trackio: its own bulk call with the
same payloads, 64 a call.
"""

from __future__ import annotations

import dataclasses
import hashlib
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import requests
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

import otel_bridge_mlflow
import otel_bridge_trackio
from benchmarks.mlflow_server import mlflow_server
from benchmarks.results import Result, median, reported
from otel_bridge.records import RolloutRecord
from otel_bridge.testing import MemoryTable, open_writer, samples

_ROUNDS = 6
_ROLLOUTS = 320
_REQUESTS = 24
"""Of MLflow's three, one after the other: the machine's speed wanders less within a second than within a round."""
_POST, _BULK = 50, 64


def run() -> list[Result]:
    """Measure."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        mlflow = _mlflow(Path(folder))
        trackio = _trackio(Path(folder))
    return [
        _result(
            "rollouts/s into an MLflow server, without rewards",
            [one[:2] for one in mlflow],
            0.9,
            "the same, bare",
        ),
        _information(
            "rollouts/s into an MLflow server, spans alone posted bare",
            [one[2] for one in mlflow],
        ),
        _result("rollouts/s into Trackio", trackio, 0.85, "its bulk call"),
    ]


def _result(
    what: str, pairs: Sequence[tuple[float, float]], goal: float, peer: str
) -> Result:
    ratio = median([ours / theirs for ours, theirs in pairs])
    ours, theirs = median([one for one, _ in pairs]), median([one for _, one in pairs])
    return Result(
        f"{what} (ours / {peer} = {ratio:.2f})",
        ours,
        theirs,
        "1/s",
        f">= {goal:g}",
        ratio >= goal,
    )


def _information(what: str, rates: Sequence[float]) -> Result:
    return reported(what, median(rates), "1/s")


def _rate(count: int, act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return count / (time.perf_counter() - began)


def _rollouts(count: int, seed: str) -> list[RolloutRecord]:
    return samples.placed(
        [
            _long(samples.rollout(number, reward=None, rewards={}, seed=seed))
            for number in range(count)
        ]
    )


def _long(rollout: RolloutRecord) -> RolloutRecord:
    """Return *rollout* with 1.1 KB of text more in each span."""
    spans = []
    for span in rollout.spans:
        message = Span.FromString(span.otlp)
        message.attributes.add(key="text").value.string_value = (
            f"{span.id} lorem ipsum dolor sit amet " * 26
        )
        spans.append(dataclasses.replace(span, otlp=message.SerializeToString()))
    return dataclasses.replace(rollout, spans=spans)


def _mlflow(folder: Path) -> list[tuple[float, float, float]]:
    """Return rollouts/s of each round: ours, the same request posted bare, and its spans alone posted bare."""
    with mlflow_server(folder) as url:
        exporter = otel_bridge_mlflow.exporter
        settings = exporter.read_settings({"MLFLOW_TRACKING_URI": url}, folder)
        writer = open_writer(
            exporter, samples.run_info(folder, "bench"), settings, MemoryTable()
        )
        session = requests.Session()

        def post(one: _Post) -> None:
            session.post(one.url, data=one.body, headers=one.headers).raise_for_status()

        warm = _rollouts(_POST, "warm")
        made = _post_of(lambda: writer.write_rollouts(warm))
        post(made.of(warm, "warm-again"))
        rounds = []
        for number in range(_REQUESTS):
            given = _rollouts(_POST, f"ours-{number}")
            same, bare = (
                made.of(warm, f"same-{number}"),
                made.with_spans(warm, f"bare-{number}"),
            )
            acts: list[Callable[[], object]] = [
                lambda of=given: writer.write_rollouts(of),  # type: ignore[misc]
                lambda of=same: post(of),  # type: ignore[misc]
                lambda of=bare: post(of),  # type: ignore[misc]
            ]
            # The database grows: each is first, second and last in turn.
            order = [(number + place) % len(acts) for place in range(len(acts))]
            rates = {place: _rate(_POST, acts[place]) for place in order}
            rounds.append((rates[0], rates[1], rates[2]))
        return rounds


@dataclasses.dataclass(frozen=True, slots=True)
class _Post:
    """A request that the exporter made."""

    url: str
    body: bytes
    headers: Mapping[str, str]

    def of(self, rollouts: Sequence[RolloutRecord], seed: str) -> _Post:
        """Return the very same request, with other trace ids in the place of those of *rollouts*."""
        body = self.body
        for rollout in rollouts:
            body = body.replace(bytes.fromhex(rollout.id), _other_id(rollout, seed))
        return dataclasses.replace(self, body=body)

    def with_spans(self, rollouts: Sequence[RolloutRecord], seed: str) -> _Post:
        """Return the request with the spans of *rollouts* as they came: no tags, no session, no chat view."""
        request = ExportTraceServiceRequest()
        scope = request.resource_spans.add().scope_spans.add()
        for rollout in rollouts:
            scope.spans.extend(Span.FromString(span.otlp) for span in rollout.spans)
        return dataclasses.replace(self, body=request.SerializeToString()).of(
            rollouts, seed
        )


def _other_id(rollout: RolloutRecord, seed: str) -> bytes:
    return hashlib.md5(f"{seed}{rollout.id}".encode(), usedforsecurity=False).digest()


def _post_of(act: Callable[[], object]) -> _Post:
    """Return the one request by which *act* posted traces."""
    posts: list[_Post] = []
    send = requests.Session.send

    def noting(
        session: requests.Session, request: requests.PreparedRequest, **named: Any
    ) -> requests.Response:
        if (
            request.url
            and request.url.endswith("/v1/traces")
            and isinstance(request.body, bytes)
        ):
            # requests sets the length anew; the rest, User-Agent and credentials included, is sent as it was.
            headers = {
                key: value
                for key, value in request.headers.items()
                if key != "Content-Length"
            }
            posts.append(_Post(request.url, request.body, headers))
        return send(session, request, **named)

    with patch.object(requests.Session, "send", noting):
        act()
    (made,) = posts
    return made


def _trackio(folder: Path) -> list[tuple[float, float]]:
    count = _ROLLOUTS
    exporter = otel_bridge_trackio.exporter
    settings = exporter.read_settings({"TRACKIO_DIR": str(folder / "trackio")}, folder)
    run = samples.run_info(folder, "bench", project="ours")
    writer = open_writer(exporter, run, settings, MemoryTable())
    writer.write_rollouts(_rollouts(8, "warm"))
    from trackio.sqlite_storage import SQLiteStorage

    def theirs(payloads: Sequence[dict[str, object]], seed: str) -> None:
        for start in range(0, len(payloads), _BULK):
            part = payloads[start : start + _BULK]
            SQLiteStorage.bulk_log(
                project="theirs",
                run="bench",
                metrics_list=[{"rollouts": [payload]} for payload in part],
                steps=[1] * len(part),
                log_ids=[f"{seed}:{start + index}" for index in range(len(part))],
                run_id="bench",
            )

    from otel_bridge_trackio.payload import rollout_trace

    pairs = []
    for number in range(_ROUNDS):
        ours = _rollouts(count, f"t-ours-{number}")
        payloads = [
            dict(rollout_trace(rollout))
            for rollout in _rollouts(count, f"t-theirs-{number}")
        ]
        own = _rate(
            count,
            lambda given=ours: [
                writer.write_rollouts(given[n : n + _BULK])
                for n in range(0, count, _BULK)
            ],  # type: ignore[misc]
        )
        pairs.append(
            (
                own,
                _rate(count, lambda given=payloads, of=number: theirs(given, f"s{of}")),
            )
        )  # type: ignore[misc]
    return pairs
