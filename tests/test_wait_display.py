from __future__ import annotations

import io
from collections.abc import Callable, Mapping

import pytest
from rich.console import Console

from otel_bridge.journal.report import ExporterReport, Report
from otel_bridge.text import wait_display
from otel_bridge.text.wait_display import Amount, WaitDisplay, records_in_trackers


class Clock:
    """Stands for the time, which the test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(wait_display, "time", clock)
    return clock


def amounts(**parts: Amount) -> Callable[[], Mapping[str, Amount]]:
    return lambda: parts


def test_without_a_terminal_there_is_one_line_every_ten_seconds(clock: Clock) -> None:
    lines: list[str] = []
    with WaitDisplay(lines.append, None) as display:
        for passed_s in range(26):
            clock.now_s = 100.0 + passed_s
            display.show(
                amounts(
                    mlflow=Amount(1000 * passed_s, 30000),
                    evaluator=Amount(passed_s),
                    end=Amount(),
                )
            )

    assert lines == [
        "waiting (10 s): mlflow 10,000 of 30,000, evaluator 10, end",
        "waiting (20 s): mlflow 20,000 of 30,000, evaluator 20, end",
    ]


def test_a_terminal_shows_bars_after_two_seconds_and_no_line_remains(
    clock: Clock,
) -> None:
    lines: list[str] = []
    output = io.StringIO()
    terminal = Console(file=output, force_terminal=True, width=100)
    with WaitDisplay(lines.append, lambda: terminal) as display:
        clock.now_s += 1.9
        display.show(amounts(mlflow=Amount(3, 40)))
        assert output.getvalue() == ""

        clock.now_s += 0.2
        display.show(amounts(mlflow=Amount(7, 40)))
        assert "mlflow" in output.getvalue()
        assert "7/40" in output.getvalue()

        clock.now_s += 1
        display.show(amounts(trackio=Amount(8, 40)))
        last_drawing = output.getvalue().rpartition("mlflow")[2]
        assert "8/40" in last_drawing

    assert lines == []
    assert output.getvalue().endswith("\x1b[2K"), "the bars are erased"
    assert output.getvalue().rfind("\x1b[?25h") > output.getvalue().rfind(
        "\x1b[?25l"
    ), "the cursor is shown"


def test_a_terminal_that_has_gone_ends_the_display_and_not_the_wait(
    clock: Clock,
) -> None:
    output = io.StringIO()
    terminal = Console(file=output, force_terminal=True)
    with WaitDisplay(print, lambda: terminal) as display:
        output.close()
        clock.now_s += 3
        display.show(amounts(mlflow=Amount(3, 40)))
        display.show(amounts(mlflow=Amount(4, 40)))


def test_records_of_all_runs_are_counted_by_tracker_and_one_that_has_ended_has_them_all() -> (
    None
):
    first = Report(
        position=10,
        exporters={
            "mlflow": ExporterReport(written=4),
            "wandb": ExporterReport(state="ended"),
        },
    )
    second = Report(
        position=5,
        exporters={
            "mlflow": ExporterReport(written=5),
            "trackio": ExporterReport(state="retrying"),
        },
    )

    assert records_in_trackers([first, second]) == {
        "records in mlflow": Amount(9, 15),
        "records in wandb": Amount(10, 10),
        "records in trackio (retrying)": Amount(0, 5),
    }
