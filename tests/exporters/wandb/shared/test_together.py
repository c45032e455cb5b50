"""What one thread logs in a block goes to wandb's service at its end, in order."""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from otel_bridge.errors import RetryableError
from otel_bridge_wandb.bulk import BulkLogger

_T = TypeVar("_T")
_internal: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")


class _Asyncer:
    """Runs a coroutine to its end and counts how often."""

    def __init__(self) -> None:
        self.runs = 0

    def run(self, fn: Callable[[], Awaitable[_T]]) -> _T:
        self.runs += 1

        async def main() -> _T:
            return await fn()

        return asyncio.run(main())


class _Client:
    """Keeps the names of what it was given; refuses *bad*."""

    def __init__(self, bad: str = "") -> None:
        self.sent: list[str] = []
        self._bad = bad

    async def publish(self, request: Any) -> None:
        name = request.record_publish.metric.name
        if name == self._bad:
            raise ConnectionResetError("the service is gone")
        self.sent.append(name)


class _Interface:
    """As wandb's own: each record is sent and waited for."""

    def __init__(self, bad: str = "") -> None:
        self._asyncer, self._client = _Asyncer(), _Client(bad)
        self.assigned: list[str] = []

    def _assign(self, record: Any) -> None:
        self.assigned.append(record.metric.name)

    def _publish(self, record: Any, *, nowait: bool = False) -> None:
        self._client.sent.append(
            f"{record.metric.name}, {'not awaited' if nowait else 'alone'}"
        )

    @property
    def asyncer(self) -> _Asyncer:
        return self._asyncer

    @property
    def sent(self) -> list[str]:
        return self._client.sent

    def publish(self, name: str, *, nowait: bool = False) -> None:
        self._publish(
            _internal.Record(metric=_internal.MetricRecord(name=name)), nowait=nowait
        )


class _Run:
    def __init__(self, interface: object) -> None:
        self._interface = interface


def test_records_of_a_block_are_sent_in_order_at_its_end_by_one_change_of_threads() -> (
    None
):
    interface = _Interface()
    together = BulkLogger(_Run(interface))

    with together():
        for name in ("a", "b", "c"):
            interface.publish(name)
        assert interface.sent == []
    interface.publish("d")

    assert interface.sent == ["a", "b", "c", "d, alone"]
    assert interface.asyncer.runs == 1
    assert interface.assigned == ["a", "b", "c"]


def test_what_other_threads_send_and_what_is_not_waited_for_goes_its_usual_way() -> (
    None
):
    interface = _Interface()
    together = BulkLogger(_Run(interface))

    with together():
        interface.publish("mine")
        other = threading.Thread(target=interface.publish, args=("other",))
        other.start()
        other.join()
        interface.publish("output", nowait=True)

    assert interface.sent == ["other, alone", "output, not awaited", "mine"]


def test_a_block_that_raises_still_sends_what_was_logged_before() -> None:
    interface = _Interface()
    together = BulkLogger(_Run(interface))

    def log() -> None:
        with together():
            interface.publish("a")
            raise ValueError("bad row")

    with pytest.raises(ValueError, match="bad row"):
        log()

    assert interface.sent == ["a"]


def test_a_service_that_is_gone_is_a_failure_that_is_tried_again() -> None:
    interface = _Interface(bad="b")
    together = BulkLogger(_Run(interface))

    def log() -> None:
        with together():
            for name in ("a", "b", "c"):
                interface.publish(name)

    with pytest.raises(RetryableError, match="handing rows over"):
        log()
    with together():
        interface.publish("d")

    assert interface.sent == ["a", "d"]


def test_an_interface_with_other_parts_is_left_as_it_is() -> None:
    class Other:
        def __init__(self) -> None:
            self.sent: list[str] = []

        def _publish(self, record: Any, *, nowait: bool = False) -> None:
            self.sent.append(record.metric.name)

        def publish(self, name: str) -> None:
            self._publish(_internal.Record(metric=_internal.MetricRecord(name=name)))

    interface = Other()

    with BulkLogger(_Run(interface))():
        interface.publish("a")
        assert interface.sent == ["a"]
    with BulkLogger(_Run(None))():
        pass
