"""Alerts of online W&B, each of which is a mail: never two for one cause, also after a kill."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from otel_bridge.errors import RetryableError
from otel_bridge.exporter import UNKNOWN_ALERTS, RunInfo
from otel_bridge.testing import MemoryTable, samples
from otel_bridge_wandb.writer import WandbRunWriter
from support.trackers import wandb_online_runs as online
from support.trackers.wandb_backend.server import WandbServer

server, run, memory, limits, opened = (
    online.server,
    online.run,
    online.memory,
    online.limits,
    online.opened,
)


class KilledTable(MemoryTable):
    """Takes nothing after the given number of writes to alerts, as if the bridge had been killed."""

    def __init__(self, writes: int) -> None:
        super().__init__()
        self._left = writes

    def put(self, key: str, value: bytes) -> None:
        if key.startswith("alerts/"):
            if not self._left:
                raise KeyboardInterrupt
            self._left -= 1
        super().put(key, value)


ALERTS = samples.placed([samples.alert(1, "first"), samples.alert(2, "second")], 1)


@pytest.mark.parametrize(
    ("writes", "titles", "unknown"),
    [
        (0, ["first", "second"], 0),
        (1, ["first", "second"], 1),
        (2, ["first", "second"], 0),
        (4, ["first", "second"], 0),
    ],
)
def test_a_kill_around_an_alert_raises_none_twice(
    server: WandbServer, run: RunInfo, writes: int, titles: list[str], unknown: int
) -> None:
    memory = KilledTable(writes)
    first = online.open_run(server, run, memory)
    if writes < 4:
        with pytest.raises(KeyboardInterrupt):
            first.write_alerts(ALERTS)
    else:
        first.write_alerts(ALERTS)
    first.close()  # wandb's service outlives the bridge, and sends what it was given

    left = MemoryTable()
    for key, value in memory.items():
        left.put(key, value)
    second = online.open_run(server, run, left)
    assert isinstance(second, WandbRunWriter)
    second.write_alerts(ALERTS)
    second.write_alerts(ALERTS)
    second.close()

    assert [alert["title"] for alert in server.run(run.id).alerts] == titles
    assert dict(second.left_out) == ({UNKNOWN_ALERTS: unknown} if unknown else {})


def test_an_alert_that_wandb_does_not_take_is_raised_again(
    server: WandbServer,
    run: RunInfo,
    memory: MemoryTable,
    opened: Callable[[], WandbRunWriter],
) -> None:
    writer = opened()
    writer.close()
    again = opened()
    with pytest.raises(RetryableError):
        writer.write_alerts(ALERTS)

    again.write_alerts(ALERTS)
    again.close()

    assert [alert["title"] for alert in server.run(run.id).alerts] == [
        "first",
        "second",
    ]
