"""What the writer does with a wandb that lacks a call, a field or a setting; whatever its version number says."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from otel_bridge.errors import BlockedError, RetryableError
from otel_bridge.exporter import RunInfo, RunWriter, call_within
from otel_bridge.records import Status
from otel_bridge.testing import deliver, samples
from otel_bridge_wandb import exporter, sdk, versions
from otel_bridge_wandb.errors import outcome
from otel_bridge_wandb.versions import INSTALL, abilities_of, replace_what_interferes
from otel_bridge_wandb.writer import WandbRunWriter
from support.bridge.bridge_doubles import until
from support.trackers import wandb_online_runs as online
from support.trackers.wandb_backend.server import WandbServer
from support.trackers.wandb_online_runs import losses, rows

server, run, memory, opened, limits = (
    online.server,
    online.run,
    online.memory,
    online.opened,
    online.limits,
)
wandb: Any = importlib.import_module("wandb")


class Installed:
    """The installed wandb under another version number, with parts left out: ``Settings.resume``, ``Run.finish`` …"""

    def __init__(self, *without: str, version: str = "0.24.0") -> None:
        self.__version__, self.__name__ = version, "wandb"
        self._without = without

    def __getattr__(self, name: str) -> object:
        if name in self._without:
            raise AttributeError(f"module 'wandb' has no attribute {name!r}")
        lacking = [
            part.partition(".")[2]
            for part in self._without
            if part.startswith(f"{name}.")
        ]
        found: Any = getattr(wandb, name)
        if not lacking:
            return found
        if name == "Settings":
            return _SettingsWithout(found, lacking)
        kept = {
            "__init__",
            *(key for key in dir(found) if key[:2] != "__" and key not in lacking),
        }
        return type(
            name, (), {key: getattr(found, key) for key in dir(found) if key in kept}
        )


class _SettingsWithout:
    """``wandb.Settings`` with fewer fields."""

    def __init__(self, whole: Any, lacking: list[str]) -> None:
        self._whole = whole
        self.model_fields = {
            name: kind
            for name, kind in whole.model_fields.items()
            if name not in lacking
        }

    def __call__(self, **values: object) -> object:
        return self._whole(**values)


@pytest.mark.parametrize("version", ["0.1.0", "0.23.1", "0.31.0", "0.99.0"])
def test_a_wandb_with_all_that_is_needed_works_whatever_its_version(
    version: str,
) -> None:
    assert abilities_of(Installed(version=version)).degraded == ()


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("Run.define_metric", "wandb 0.24.0 has no Run.define_metric"),
        ("Api.artifacts", "wandb 0.24.0 has no Api.artifacts"),
        ("Settings.resume", "wandb 0.24.0 has no setting resume"),
        ("init", "wandb 0.24.0 has no wandb.init"),
    ],
)
def test_what_nothing_works_without_blocks_and_names_the_call(
    missing: str, said: str
) -> None:
    with pytest.raises(BlockedError) as blocked:
        abilities_of(Installed(missing))

    assert (str(blocked.value), blocked.value.help) == (said, INSTALL)


def test_a_setting_that_this_wandb_lacks_is_named_and_one_with_a_way_of_our_own_is_not() -> (
    None
):
    lacking = Installed(
        "Settings.x_disable_stats", "Settings.finish_timeout", "Settings.stop_fn"
    )

    found = abilities_of(
        lacking, ("x_disable_stats", "finish_timeout", "stop_fn", "silent")
    )

    assert (found.finish_timeout, found.degraded) == (
        False,
        (
            "wandb 0.24.0 lacks the settings x_disable_stats: the run may show data of the bridge's process",
        ),
    )


def test_without_not_complete_it_is_said_what_the_page_shows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(versions, "can_leave_open", lambda: False)

    assert abilities_of(Installed()).degraded == (
        "wandb 0.24.0 shows a run as finished while its bridge pauses or restarts, as running from 0.26.1",
    )


@pytest.mark.parametrize(
    "error",
    [
        ImportError("cannot import name 'Union' from 'pydantic'"),
        AttributeError(
            "module 'wandb' has no attribute 'Table'", name="Table", obj=wandb
        ),
        TypeError("Api.artifacts() got an unexpected keyword argument 'per_page'"),
    ],
)
def test_a_wandb_that_lacks_what_is_called_blocks_with_help_and_is_not_tried_for_ever(
    error: Exception,
) -> None:
    found = outcome(error, "opening the run", 7)

    assert isinstance(found, BlockedError)
    assert (found.help, found.position) == (INSTALL, 7)
    assert str(error) in str(found)


@pytest.fixture
def interrupt() -> Iterator[Any]:
    module: Any = importlib.import_module("wandb.sdk.lib.interrupt")
    before = module.interrupt_main
    yield module
    module.interrupt_main = before


def test_the_stop_button_never_interrupts_the_bridge(
    interrupt: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted: list[int] = []

    def kill(_thread: int, number: int) -> None:
        interrupted.append(number)

    monkeypatch.setattr(signal, "pthread_kill", kill)

    replace_what_interferes(Installed("Settings.stop_fn"))
    interrupt.interrupt_main()

    assert interrupted == []


def test_a_finish_without_a_limit_of_its_own_is_given_ours(
    server: WandbServer,
    run: RunInfo,
    opened: Callable[[], RunWriter],
    limits: Mapping[str, str],
) -> None:
    writer = opened()
    assert isinstance(writer, WandbRunWriter)
    _without_finish_timeout(writer, 0.5)
    deliver(writer, rows(1, 3))
    server.hang(what="filestream")

    with pytest.raises(RetryableError, match=r"did not return within 0\.5 s"):
        writer.end(Status.FINISHED)
    server.heal()
    again = _opened_again(opened)
    deliver(again, rows(1, 3), held=again.durable())
    again.end(Status.FINISHED)

    assert losses(server, run) == [1, 2, 3]


def _without_finish_timeout(writer: WandbRunWriter, deadline_s: float) -> None:
    whole: Any = vars(writer)["_opened"]
    assert whole is not None
    finish = whole.run.finish
    slow = SimpleNamespace(finish=finish, log=whole.run.log, config=whole.run.config)
    vars(writer)["_opened"] = dataclasses.replace(
        whole, run=slow, deadline_s=deadline_s
    )


def _opened_again(opened: Callable[[], RunWriter]) -> RunWriter:
    """Open as the bridge does, which tries again while the finish of before is under way."""
    found: list[RunWriter] = []

    def tried() -> bool:
        try:
            found.append(opened())
        except RetryableError as error:
            if "in use" not in str(error):
                raise
        return bool(found)

    until(tried)
    return found[0]


def test_a_call_that_fails_within_its_time_fails_as_itself() -> None:
    def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        call_within(5.0, fails)
    with pytest.raises(TimeoutError, match=r"within 0\.01 s"):
        call_within(0.01, threading.Event().wait)


@pytest.mark.long
def test_rollouts_are_never_stuck_while_the_server_is_down_and_arrive_once_it_is_back(
    server: WandbServer, run: RunInfo, opened: Callable[[], RunWriter]
) -> None:
    writer = opened()
    rollouts = samples.placed([samples.rollout(n, step=n) for n in (1, 2)])
    server.refuse()
    with contextlib.suppress(
        RetryableError
    ):  # wandb 0.31 looks at its credentials first, for some seconds
        writer.write_rollouts(rollouts)
    server.listen()

    for _retry in range(5):  # as the bridge does
        with contextlib.suppress(RetryableError):
            writer.write_rollouts(rollouts)
            break
    until(lambda: writer.durable() == 2)
    writer.end(Status.FINISHED)

    assert [row["trace"] for row in server.table(run.id, "explorer/rollouts")] == [
        rollout.id for rollout in rollouts
    ]


def test_the_probe_opens_no_run(server: WandbServer, run: RunInfo) -> None:
    assert exporter.probe is not None

    found = exporter.probe(online.settings_at(server, run.folder))

    assert (tuple(found), server.store.runs) == (sdk.abilities(wandb).degraded, {})
