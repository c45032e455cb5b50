"""Plain = launched = through OTLP: the same job leaves the same records, whatever way they came."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.proto.logs.v1.logs_pb2 import ScopeLogs
from opentelemetry.proto.metrics.v1.metrics_pb2 import ScopeMetrics
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans

from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.bridge.supervisor import BridgeSupervisor
from otel_bridge.exporter import SIGNALS
from otel_bridge.journal.frames import Signal
from otel_bridge.journal.segment import read_segment
from otel_bridge_collector import Receiver, ReceiverSettings
from otel_bridge_collector.ingest import Ingest, IngestSettings
from otel_bridge_collector.telemetry.counters import Counters
from support.trainers.command_runs import (
    call,
    ended,
    environment,
    only_folder,
    otel_bridge,
    program,
    records,
)

JOB = """
    import math
    import otel_bridge

    run = otel_bridge.init("maths", "ppo", role="trainer", tags=["a", "b"], config={"lr": 0.1, "actor": {"layers": 3}})
    def messages(n):
        return [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": f"{n} + {n}?"},
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "add", "arguments": f'{{"a": {n}}}'}}]},
            {"role": "tool", "tool_call_id": "c1", "name": "add", "content": str(2 * n)},
            {"role": "assistant", "content": str(2 * n)},
        ]
    for step in range(1, 41):
        run.log({"loss": 1 / step, "actor": {"lr": 1e-6}, "tokens": 10**12 + step, "done": step == 40}, step=step)
        run.log({"bad": [math.nan, math.inf, -math.inf][step % 3]}, step=step)
        run.log({"advantage": [step / 2, -1.0, 0.25, 3.0]}, step=step)
        run.log({"queue": step}, step=2 * step, role="explorer")
        run.log_rollouts([
            otel_bridge.Rollout(messages(n), id=f"r-{step}-{n}", reward=n / 3, rewards={"format": 0.2}, advantage=-n,
                                group=f"g{n % 2}", sample=n, policy_version=step - 1, metadata={"level": n})
            for n in range(20)
        ], step=step, split="train")
        with run.rollout(step=step, role="explorer", split="eval", group="g") as rollout:
            with otel_bridge.chat("policy"):
                pass
            with otel_bridge.tool("search"):
                pass
            rollout.messages = messages(step)
            rollout.reward = 0.5
    run.log_config({"warmup": 5})
    late = [otel_bridge.Rollout(messages(1), id="last", reward=0.0)]
    run.log_rollouts(late, step=41)
    run.log_reward("r-1-3", 0.75, name="judge", explanation="checked")
    run.finish()
"""


@pytest.mark.long
def test_plain_launched_and_through_otlp_leave_the_same_records(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    plain = _plain(tmp_path / "plain")

    ways = {
        "launched": _launched(tmp_path),
        "gRPC": _through_otlp(tmp_path, "grpc"),
        "HTTP": _through_otlp(tmp_path, "http"),
    }

    kinds = [record["kind"] for record in plain]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "row": 241,
        "rollout": 681,
        "evaluation": 1,
        "config": 1,
        "end": 1,
    }
    for way, found in ways.items():
        assert _first_difference(plain, found) is None, way


# A value that arrives while its step is open becomes part of the reward, which would depend on the pace of the machine.
ENVIRONMENT = {"OTEL_BRIDGE_EXPORTERS": "file", "OTEL_BRIDGE_STEP_STARTUP_S": "0"}


def _plain(folder: Path) -> list[dict[str, Any]]:
    job = program(folder, "job.py", JOB)
    done = call(["python", job], cwd=folder, env=environment(folder, **ENVIRONMENT))
    assert done.returncode == 0, done.stderr
    ended(folder / ".otel-bridge")
    return normal(records(only_folder(folder / ".otel-bridge")))


def _launched(tmp_path: Path) -> list[dict[str, Any]]:
    folder = tmp_path / "launched"
    folder.mkdir()
    job = program(folder, "job.py", JOB)
    env = environment(folder, **ENVIRONMENT)
    done = otel_bridge(
        "run", "--exporters", "file", "--", "python", job, cwd=folder, env=env
    )
    assert done.returncode == 0, done.stderr
    return normal(records(only_folder(folder / ".otel-bridge")))


def _through_otlp(tmp_path: Path, protocol: str) -> list[dict[str, Any]]:
    here, there = tmp_path / f"{protocol}-here", tmp_path / f"{protocol}-there"
    here.mkdir()
    there.mkdir()
    job = program(here, "job.py", JOB)
    with _service(there) as receiver:
        by_protocol = {
            "grpc": ("grpc", receiver.grpc_endpoint),
            "http": ("http/protobuf", receiver.http_endpoint),
        }
        sent, endpoint = by_protocol[protocol]
        where = {
            "OTEL_EXPORTER_OTLP_PROTOCOL": sent,
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        }

        done = call(["python", job], cwd=here, env=environment(here, **where))

        assert done.returncode == 0, done.stderr
        ended(there)
    return normal(records(only_folder(there)))


@contextmanager
def _service(base: Path) -> Iterator[Receiver]:
    """A second bridge, as ``serve`` is one: a receiver and a host of its run folders."""
    host = BridgeSupervisor(base, _serving())
    host.start()
    receiver = Receiver(ReceiverSettings.from_environment({}, base))
    try:
        yield receiver
    finally:
        receiver.stop()
        host.stop()


def _serving() -> BridgeOptions:
    # A passed step waits this long behind a receiver; a late value that comes meanwhile becomes part of the reward.
    read = BridgeOptions.read({**ENVIRONMENT, "OTEL_BRIDGE_ROW_WAIT_S": "0.01"}, Path())
    return dataclasses.replace(
        read, exporters=dict.fromkeys(SIGNALS, ("file",)), local=False
    )


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base of a job whose segments nobody has read."""
    folder = tmp_path_factory.mktemp("held")
    job = program(folder, "job.py", JOB)
    done = call(
        ["python", job], cwd=folder, env=environment(folder, OTEL_BRIDGE_OFFLINE="1")
    )
    assert done.returncode == 0, done.stderr
    return folder / ".otel-bridge"


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_job_cut_and_merged_on_its_way_leaves_the_same_records(
    held: Path, tmp_path: Path, seed: int
) -> None:
    whole = _received(tmp_path / "whole", _requests(held))

    cut = _received(tmp_path / "cut", _recut(_requests(held), random.Random(seed)))

    assert len(whole) > 900
    assert _first_difference(whole, cut) is None


Request = tuple[Signal, Any]


def _requests(base: Path) -> list[Request]:
    """One request a frame, as the segments have them."""
    requests: list[Request] = []
    for segment in only_folder(base).segments():
        header, scan = read_segment(segment.path, 0, limit_bytes=1 << 30, final=True)
        assert header is not None
        resource = Resource.FromString(header.resource)
        for frame in scan.frames:
            if frame.signal is Signal.METRICS:
                metrics = ExportMetricsServiceRequest()
                part = metrics.resource_metrics.add(resource=resource)
                part.scope_metrics.append(ScopeMetrics.FromString(frame.payload))
                requests.append((frame.signal, metrics))
            elif frame.signal is Signal.TRACES:
                traces = ExportTraceServiceRequest()
                spans = traces.resource_spans.add(resource=resource)
                spans.scope_spans.append(ScopeSpans.FromString(frame.payload))
                requests.append((frame.signal, traces))
            elif frame.signal is Signal.LOGS:
                logs = ExportLogsServiceRequest()
                logs.resource_logs.add(resource=resource).scope_logs.append(
                    ScopeLogs.FromString(frame.payload)
                )
                requests.append((frame.signal, logs))
    return requests


def _recut(requests: list[Request], choice: random.Random) -> Iterator[Request]:
    """Merge neighbours of one signal and cut the sum between any points or spans, as a Collector's batcher does."""
    while requests:
        signal = requests[0][0]
        count = 1
        while (
            count < len(requests)
            and requests[count][0] is signal
            and count < choice.randint(1, 40)
        ):
            count += 1
        merged = type(requests[0][1])()
        for _, request in requests[:count]:
            merged.MergeFrom(request)
        requests = requests[count:]
        yield from ((signal, part) for part in _cut(signal, merged, choice))


def _cut(signal: Signal, request: Any, choice: random.Random) -> Iterator[Any]:
    parts, scopes, items = {
        Signal.METRICS: ("resource_metrics", "scope_metrics", "metrics"),
        Signal.TRACES: ("resource_spans", "scope_spans", "spans"),
        Signal.LOGS: ("resource_logs", "scope_logs", "log_records"),
    }[signal]
    flat = [
        (part.resource, scope.scope, item)
        for part in getattr(request, parts)
        for scope in getattr(part, scopes)
        for item in getattr(scope, items)
    ]
    while flat:
        size = choice.randint(1, 7)
        made = type(request)()
        for resource, scope, item in flat[:size]:
            added = getattr(getattr(made, parts).add(resource=resource), scopes).add(
                scope=scope
            )
            getattr(added, items).append(item)
        yield made
        flat = flat[size:]


def _received(base: Path, requests: Iterable[Request]) -> list[dict[str, Any]]:
    """Let a receiver take *requests* and a host bring them to the files; returns what they hold."""
    base.mkdir()

    async def accept() -> None:
        ingest = Ingest(
            IngestSettings(
                base=base, max_bytes=1 << 30, fsync=False, segment_bytes=1 << 16
            ),
            Counters(),
        )
        for signal, request in requests:
            await ingest.accept(signal, request.SerializeToString())
        await ingest.close()

    asyncio.run(accept())
    host = BridgeSupervisor(base, _serving(), until_done=True)
    host.serve()
    return normal(records(only_folder(base)))


# --- one form for all ways --------------------------------------------------------------------------------------------
_ID = re.compile(r"\b[0-9a-f]{32}\b|\b[0-9a-f]{16}\b")


def normal(found: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Order by what the job said, and put numbers for ids and times, which no two starts of a job share.

    Of a role's configs the last holds, and how often it was written says only when the file was opened.
    """
    last = {
        (record["role"], "config"): record
        for record in found
        if record["kind"] == "config"
    }
    kept = [*last.values(), *(record for record in found if record["kind"] != "config")]
    ordered = sorted(({**record, "position": 0} for record in kept), key=_order)
    times = sorted({time for record in ordered for time in _times(record)})
    ranks = {time: rank for rank, time in enumerate(times)}
    ids: dict[str, str] = {}
    return [_plainly(record, ranks, ids) for record in ordered]


def _order(record: Mapping[str, Any]) -> tuple[Any, ...]:
    kind = record["kind"]
    if kind == "row":
        return kind, record["axis"], record["step"], sorted(record["values"])
    if kind == "rollout":
        return kind, record["key"], record["step"], record["sample"] or 0
    return kind, str(record.get("name")), str(record.get("role"))


def _times(value: Any) -> Iterator[int]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key.endswith("_unix_ns"):
                yield item
            else:
                yield from _times(item)
    elif isinstance(value, list):
        for item in value:
            yield from _times(item)


def _plainly(value: Any, ranks: Mapping[int, int], ids: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {
            key: ranks[item] if key.endswith("_unix_ns") else _plainly(item, ranks, ids)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_plainly(item, ranks, ids) for item in value]
    if isinstance(value, str):
        return _ID.sub(
            lambda found: ids.setdefault(found.group(), f"#{len(ids)}"), value
        )
    return value


def _first_difference(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> Any:
    """The first records that differ, and where, instead of two lists of a thousand."""
    for left, right in zip(one, other, strict=False):
        if left != right:
            return {
                key: (left.get(key), right.get(key))
                for key in left | right
                if left.get(key) != right.get(key)
            }, left
    return None if len(one) == len(other) else (len(one), len(other), (one + other)[-1])
