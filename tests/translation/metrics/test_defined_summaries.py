"""Summaries that a program has defined for keys: over all rows, at the end of the run, however it ended."""

from __future__ import annotations

import pytest

from otel_bridge.records import Status, Summary
from support.otlp.otlp_samples import T0, Bench, end, event, row, source

DEFINE = "rl.metric.summary"


def summaries(bench: Bench) -> list[dict[str, object]]:
    return [
        dict(record.values) for record in bench.records if isinstance(record, Summary)
    ]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_killed_run_has_the_summaries_of_all_its_rows(restarts: bool) -> None:
    bench = Bench()
    bench.open(source("i1", None))
    bench.logs(
        source("i1", None),
        event(DEFINE, 1, {"acc": "max,mean", "loss/*": "min,first", "none": "none"}),
    )

    for number, (acc, loss) in enumerate([(0.5, 3.0), (0.75, 1.0), (0.25, 2.0)], 1):
        bench.metrics(
            source("i1", None),
            row(
                number,
                {"acc": acc, "loss/a": loss, "none": 1.0, "other": 1.0},
                role=None,
            ),
        )
        if restarts:
            bench.restart()
    assert summaries(bench) == []
    bench.logs(source("i1", None), end("killed", time_ns=T0 + 9))
    bench.close()

    assert summaries(bench) == [
        {"acc.max": 0.75, "acc.mean": 0.5, "loss/a.min": 1.0, "loss/a.first": 3.0}
    ]
    assert [type(one).__name__ for one in bench.records][-2:] == ["Summary", "End"]
    assert bench.translator.status() == Status.KILLED.value


def test_the_later_definition_of_a_name_holds_and_an_empty_one_ends_it() -> None:
    bench = Bench()
    bench.logs(source(), event(DEFINE, 2, {"acc": "max"}, T0))
    bench.logs(
        source(),
        event(DEFINE, 1, {"acc": "min"}, T0),
        event(DEFINE, 3, {"loss": "min"}, T0),
    )
    bench.logs(source(), event(DEFINE, 4, {"loss": ""}, T0))

    bench.metrics(
        source(), row(1, {"acc": 1.0, "loss": 1.0}), row(2, {"acc": 2.0, "loss": 2.0})
    )
    bench.logs(source(), end("finished", 5, last_row=2))
    bench.close()

    assert summaries(bench) == [{"trainer/acc.max": 2.0}]


def test_a_run_that_goes_on_after_its_end_shows_what_has_changed() -> None:
    bench = Bench()
    bench.logs(source(), event(DEFINE, 1, {"*": "max,min"}))
    bench.metrics(source(), row(1, {"a": 1.0, "b": 1.0}))
    bench.logs(source(), end("killed", time_ns=T0 + 9))
    bench.close()

    bench.open(source("i2"))
    bench.metrics(source("i2"), row(1, {"a": 3.0, "b": 1.0}))
    bench.logs(source("i2"), end("killed", time_ns=T0 + 19))
    bench.close()

    assert summaries(bench)[1:] == [{"trainer/a.max": 3.0}]
