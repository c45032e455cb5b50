"""What the receiver stores, without its servers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from otel_bridge.errors import JournalError
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.frames import Signal
from otel_bridge_collector import ReceiverSettings
from otel_bridge_collector.ingest import Ingest
from otel_bridge_collector.telemetry.counters import Counters
from support.waiting import HANG_S


def request(*runs: str) -> bytes:
    """Return a request without points that names *runs*."""
    message = ExportMetricsServiceRequest()
    for run_id in runs:
        resource = message.resource_metrics.add().resource
        resource.attributes.add(key="rl.run.id").value.string_value = run_id
    return message.SerializeToString()


def with_ingest(
    base: Path, scene: Callable[[Ingest], Coroutine[None, None, None]]
) -> None:
    async def play() -> None:
        chosen = ReceiverSettings.from_environment({}, base).ingest
        ingest = Ingest(chosen, Counters())
        await scene(ingest)
        await ingest.close()

    asyncio.run(play())


def test_whether_there_is_space_is_found_while_as_many_ask_as_there_are_threads(
    tmp_path: Path,
) -> None:
    async def scene(ingest: Ingest) -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        answered = threading.Event()
        loop.run_in_executor(None, answered.wait)  # a page that waits for the answer
        ingest._disk_full = True
        try:
            assert await asyncio.wait_for(ingest.lacks_space(), HANG_S) == ""
        finally:
            answered.set()

    with_ingest(tmp_path, scene)


def test_a_token_is_noted_of_what_is_stored_although_the_request_fails(
    tmp_path: Path,
) -> None:
    RunFolder(tmp_path, "unusable").path.write_text("a file, where a folder should be")

    async def scene(ingest: Ingest) -> None:
        await ingest.accept(Signal.METRICS, request("a", "b"), token=1)
        assert ingest.same_token("a", "b")

        with pytest.raises(JournalError):
            await ingest.accept(Signal.METRICS, request("a", "unusable"), token=2)

        assert not ingest.same_token("a", "b")

    with_ingest(tmp_path, scene)
