"""Sends the service's own metrics to where the exporter ``otlp`` delivers, once a minute."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Final

from otel_bridge.bridge.forwarding.client import client_for
from otel_bridge.bridge.forwarding.endpoint import endpoint_for
from otel_bridge.errors import OtelBridgeError
from otel_bridge_collector.metrics_text import Metric, request_of

EVERY_S: Final = 60.0
_log = logging.getLogger("otel_bridge_collector")


class OwnMetrics:
    """A thread between `start` and `stop`. What cannot be sent is not kept: the next ones say more.

    Args:
        read: Returns the metrics as they are now.
        env: Where the standard ``OTEL_EXPORTER_OTLP_*`` variables are read.
        every_s: How often.

    Raises:
        ConfigError: A variable cannot be used.
    """

    def __init__(
        self, read: Callable[[], Sequence[Metric]], env: Mapping[str, str], *, every_s: float = EVERY_S
    ) -> None:
        self._read, self._every_s = read, every_s
        self._client = client_for(endpoint_for("metrics", env))
        self._began_ns = time.time_ns()
        self._resource = {
            "service.name": "otel-bridge",
            "service.version": version("otel-bridge"),
            "service.instance.id": os.urandom(8).hex(),
            "host.name": socket.gethostname(),
        }
        self._stopping = threading.Event()
        self._failed = False
        self._thread = threading.Thread(target=self._run, name="own-metrics", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def stop(self) -> None:
        """End; does not wait for a request under way."""
        self._stopping.set()

    def send(self) -> None:
        """Send once; raises what the client raises."""
        body = request_of(self._read(), self._resource, start_unix_ns=self._began_ns, now_unix_ns=time.time_ns())
        self._client.send(body, "")

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            self._try()
        self._client.close()

    def _try(self) -> None:
        try:
            self.send()
        except OtelBridgeError as exc:
            if not self._failed:  # said when it begins, not at each try
                _log.warning("our own metrics are not sent: %s", exc)
            self._failed = True
        else:
            self._failed = False
