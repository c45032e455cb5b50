"""Alerts of a captured program: at most one of a title within its wait."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from otel_bridge.capture.wandb.alerts import AlertWaits
from support.trainers.captured_wandb import captured
from support.trainers.command_runs import only_folder, records, report_of, runs


def test_an_alert_passes_when_the_wait_of_the_last_one_of_its_title_is_over() -> None:
    now = [0.0]
    waits = AlertWaits(lambda: now[0])
    found = []

    for at, title, wait in [
        (0, "low", timedelta(minutes=5)), (1, "low", 1), (2, "other", None), (61, "other", None), (62, "other", 10),
        (299, "low", 1), (300, "low", 1), (301, "low", 0), (302, "low", 0),
    ]:  # fmt: skip
        now[0] = at
        found.append(waits.passes(title, wait))

    assert found == [True, False, True, False, True, False, True, True, False]


def test_a_title_that_raises_as_a_text_does_not_reach_the_program() -> None:
    class Title:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    assert AlertWaits().passes(Title())


def test_an_alert_of_a_signal_handler_inside_another_does_not_hang() -> None:
    waits = AlertWaits()

    class Interrupted(timedelta):
        def total_seconds(self) -> float:
            assert waits.passes("of the handler")
            return super().total_seconds()

    assert waits.passes("of the program", Interrupted(minutes=1))


@pytest.mark.slow
def test_repeated_alerts_of_one_title_leave_room_for_another(tmp_path: Path) -> None:
    code = """
    import datetime
    import wandb
    run = wandb.init(project="p", name="e")
    for number in range(1100):
        wandb.alert("low", f"{number}", wandb.AlertLevel.WARN, datetime.timedelta(minutes=5))
        run.alert(title="slow", text=f"{number}", wait_duration=300)
    wandb.alert(title="diverged", text="loss is nan", level=wandb.AlertLevel.ERROR)
    """

    captured(tmp_path, code)

    alerts = [
        one for one in records(only_folder(runs(tmp_path))) if one["kind"] == "alert"
    ]
    assert [(one["title"], one["text"], one["level"]) for one in alerts] == [
        ("low", "0", "warn"), ("slow", "0", "info"), ("diverged", "loss is nan", "error")
    ]  # fmt: skip
    assert report_of(runs(tmp_path)).drops == {}
