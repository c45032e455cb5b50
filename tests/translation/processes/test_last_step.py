"""The last step of a role, as ``status`` shows it."""

from __future__ import annotations

from otel_bridge.records import Row
from otel_bridge.translation.options import TranslationOptions
from support.otlp.otlp_samples import RUN, T0, TRACES, Bench, end, row, source
from support.otlp.trace_samples import rollout_spans, scope_spans


def test_statistics_of_an_earlier_step_that_come_late_do_not_set_the_last_step_back() -> (
    None
):
    bench = Bench(options=TranslationOptions(run_id=RUN, max_rollouts=1))
    bench.metrics(source(), *(row(step, {"loss": 1.0}) for step in range(1, 11)))
    spans = scope_spans(rollout_spans("r1", step=3)).SerializeToString()
    bench.translator.frame(source(), TRACES, spans, False, T0, T0)

    late = bench.tick(400)
    bench.translator.flush()

    assert [
        (record.step, record.axis) for record in late if isinstance(record, Row)
    ] == [(3, "trainer/step")]
    assert bench.state.items("axis/") == [("axis/trainer/step", 10)]


def test_a_row_of_an_earlier_step_does_not_set_the_furthest_step_back_and_a_restart_does() -> (
    None
):
    bench = Bench()
    bench.metrics(
        source(), row(1, {"loss": 1.0}, step=10), row(2, {"statistics": 1.0}, step=3)
    )
    bench.translator.flush()
    late = bench.state.items("furthest/")
    bench.restart()
    bench.logs(source(), end("failed", 1, last_row=2))
    bench.metrics(source("i2"), row(1, {"loss": 1.0}, step=4))
    bench.translator.flush()

    assert (late, bench.state.items("furthest/")) == (
        [("furthest/trainer/step", 10)],
        [("furthest/trainer/step", 4)],
    )
