"""Sends many records to wandb's service at once, with one change of threads instead of one per record.

``run.log`` sends each row on wandb's own thread and waits until it is sent
(``InterfaceSock._publish``), which is a third of a row's cost. Records that a thread logs in a
``with`` block are sent at the end of the block, in the same order, and the block waits for that, as
each ``run.log`` would. If wandb's internals differ, nothing is changed.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from otel_bridge_wandb.errors import outcome

AT_ONCE = 100
"""Most rows of one block, which wait in memory."""


class BulkLogger:
    """Sends blocks of records of one open run. For one thread.

    Records of other threads are sent as usual.

    Args:
        run: ``wandb.Run``.
    """

    def __init__(self, run: Any) -> None:
        self._interface: Any = getattr(run, "_interface", None)
        self._publish: Any = getattr(self._interface, "_publish", None)
        self._assign: Any = getattr(self._interface, "_assign", None)
        self._asyncer: Any = getattr(self._interface, "_asyncer", None)
        self._client: Any = getattr(self._interface, "_client", None)
        self._is_able = None not in {
            self._publish,
            self._assign,
            self._asyncer,
            self._client,
        }
        self._owner = 0
        self._requests: list[Any] = []

    @contextmanager
    def __call__(self) -> Generator[None, None, None]:
        """Send the records of the block at its end, also when the block raises.

        Rows that were logged before the error count as logged, so they must be sent. If that fails,
        its error replaces that of the block: all of the block is due again. Without one of wandb's
        private parts nothing is held back: each row is sent as wandb sends it.

        Raises:
            RetryableError: The records could not be sent; it is unknown which of them arrived.
            BlockedError: wandb reports that a person must act.
        """
        if not self._is_able:
            yield
            return
        self._owner = threading.get_ident()
        # run.log and define_metric both publish by it, so that their records stay in one order.
        self._interface._publish = self._keep
        try:
            yield
        finally:
            # First of all, so that an error of the sending leaves wandb as it was.
            self._interface._publish = self._publish
            requests = self._requests
            self._requests = []
            if requests:
                self._send(requests)

    def _keep(self, record: Any, *, nowait: bool = False) -> None:
        """Hold back a record of the owner's thread; publish one of any other thread at once.

        Only the thread of the block waits at its end, so that no other thread may depend on that.
        Raises wandb's own exceptions, as wandb's `_publish` does.
        """
        # "nowait" is set where wandb calls from its own asyncio thread (wandb_run.py, 0.31).
        if nowait or threading.get_ident() != self._owner:
            self._publish(record, nowait=nowait)
            return
        messages: Any = importlib.import_module("wandb.proto.wandb_server_pb2")
        # From here on as wandb's own _publish (interface_sock.py, 0.31).
        self._assign(record)
        request = messages.ServerRequest()
        request.record_publish.CopyFrom(record)
        self._requests.append(request)

    def _send(self, requests: Sequence[Any]) -> None:
        """Send *requests* in order, with one change of threads.

        Raises:
            ExporterError: What `outcome` makes of wandb's exception, without a position; the caller
                adds it.
        """

        async def send() -> None:
            for request in requests:
                # One by one and in order: the server numbers lines as they arrive.
                await self._client.publish(request)

        try:
            self._asyncer.run(send)
        except Exception as exc:
            raise outcome(exc, "handing rows over") from exc
