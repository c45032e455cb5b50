from __future__ import annotations

import math

from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb

from otel_bridge.records import Distribution, Row
from otel_bridge.translation.options import TranslationOptions
from support.otlp.otlp_samples import (
    RUN,
    SCOPE,
    T0,
    Bench,
    end,
    gauge,
    metrics_request,
    pairs,
    row,
    source,
    who,
)


def trainer_row(
    seq: int,
    values: dict[str, float],
    *,
    id_: str | None = None,
    steps: dict[str, int] | None = None,
) -> Row:
    named = {f"trainer/{key}": value for key, value in values.items()}
    return Row(
        id_ or f"m:i1:{seq}",
        "trainer",
        seq,
        "trainer/step",
        T0 + seq,
        named,
        steps or {"trainer/step": seq},
    )


def only(scope: pb.ScopeMetrics, *names: str) -> pb.ScopeMetrics:
    """The part of a row that holds these metrics."""
    return pb.ScopeMetrics(
        scope=SCOPE,
        metrics=[metric for metric in scope.metrics if metric.name in names],
    )


def test_a_row_of_a_process_becomes_one_record_with_full_keys_axis_and_steps() -> None:
    bench = Bench()

    records = bench.metrics(
        source(), row(1, {"loss": 0.5, "actor/lr": 1e-6, "trainer/tokens": 7}, step=10)
    )

    values = {"trainer/loss": 0.5, "trainer/actor/lr": 1e-6, "trainer/tokens": 7}
    assert records == [
        Row(
            "m:i1:1",
            "trainer",
            10,
            "trainer/step",
            T0 + 1,
            values,
            {"trainer/step": 10},
        )
    ]
    assert type(records[0].values["trainer/tokens"]) is int


def test_without_a_role_keys_stay_as_given() -> None:
    bench = Bench()

    records = bench.metrics(
        source(role=None), row(1, {"loss": 0.5, "step": 3.0}, step=3)
    )

    assert records == [
        Row(
            "m:i1:1",
            None,
            3,
            "step",
            T0 + 1,
            {"loss": 0.5, "step_value": 3.0},
            {"step": 3},
        )
    ]


def test_a_row_may_name_another_role_and_every_row_carries_all_axes() -> None:
    bench = Bench()

    bench.metrics(source(), row(1, {"loss": 1.0}, step=4))
    records = bench.metrics(source(), row(2, {"score": 2.0}, step=0, role="evaluator"))

    assert records == [
        Row("m:i1:2", "evaluator", 0, "evaluator/step", T0 + 2, {"evaluator/score": 2.0},
            {"trainer/step": 4, "evaluator/step": 0})
    ]  # fmt: skip


def test_ranks_above_zero_are_distinguished_by_their_keys() -> None:
    bench = Bench()

    records = bench.metrics(source(rl_rank=3), row(1, {"loss": 1.0}))

    assert [dict(record.values) for record in records] == [{"trainer/loss/rank3": 1.0}]


def test_not_a_number_and_infinities_arrive() -> None:
    bench = Bench()

    bench.metrics(
        source(),
        *(
            row(seq, {"a": math.nan, "b": math.inf, "c": -math.inf})
            for seq in (1, 2, 3)
        ),
    )

    assert [str(dict(record.values)) for record in bench.records] == [
        "{'trainer/a': nan, 'trainer/b': inf, 'trainer/c': -inf}"
    ] * 3


def test_a_distribution_is_a_value_of_its_row() -> None:
    scope = row(1, {"loss": 0.5})
    point = pb.ExponentialHistogramDataPoint(
        attributes=pairs({"rl.step": 1}), time_unix_nano=T0 + 1, count=3, sum=7.0, min=1.0, max=4.0, scale=0,
        positive=pb.ExponentialHistogramDataPoint.Buckets(offset=-1, bucket_counts=[1, 1, 1]),
    )  # fmt: skip
    scope.metrics.insert(
        0,
        pb.Metric(
            name="ratio",
            exponential_histogram=pb.ExponentialHistogram(data_points=[point]),
        ),
    )
    scope.metrics[-1].gauge.data_points[0].as_int = 2
    bench = Bench()

    bench.metrics(source(), scope)

    ratio = Distribution(3, 7.0, 1.0, 4.0, (0.5, 1.0, 2.0, 4.0), (1, 1, 1))
    assert bench.records == [trainer_row(1, {"ratio": ratio, "loss": 0.5})]  # type: ignore[dict-item]


def test_a_distribution_with_buckets_of_its_own_is_a_value_of_its_row() -> None:
    scope = row(1, {"loss": 0.5})
    point = pb.HistogramDataPoint(
        attributes=pairs({"rl.step": 1}), time_unix_nano=T0 + 1, count=3, sum=2.0, min=-1.0, max=2.0,
        explicit_bounds=[0.0, 0.5], bucket_counts=[1, 0, 2],
    )  # fmt: skip
    scope.metrics.insert(
        0, pb.Metric(name="ratio", histogram=pb.Histogram(data_points=[point]))
    )
    scope.metrics[-1].gauge.data_points[0].as_int = 2
    bench = Bench()

    bench.metrics(source(), scope)

    ratio = Distribution(3, 2.0, -1.0, 2.0, (-1.0, 0.0, 0.5, 2.0), (1, 0, 2))
    assert bench.records == [trainer_row(1, {"ratio": ratio, "loss": 0.5})]  # type: ignore[dict-item]


def test_rows_with_a_time_of_their_own_have_that_time_also_when_it_repeats_or_a_restart_is_between() -> (
    None
):
    first, second, third, cut = (
        row(seq, {"loss": float(seq), "lr": 0.5}) for seq in (1, 2, 3, 4)
    )
    for scope, own_ns in (
        (first, 5_000),
        (second, 5_000),
        (third, 4_000),
        (cut, 3_000),
    ):
        scope.metrics[-1].gauge.data_points[0].attributes.extend(
            pairs({"rl.row.time_unix_ns": own_ns})
        )
    bench = Bench()

    bench.metrics(source(), first, second, third)
    bench.request(metrics_request((who(), [only(cut, "loss", "rl.row")])))
    bench.restart()
    bench.request(metrics_request((who(), [only(cut, "lr")])))

    assert [
        (record.step, record.time_unix_ns, dict(record.values))
        for record in bench.records
    ] == [
        (seq, own_ns, {"trainer/loss": float(seq), "trainer/lr": 0.5})
        for seq, own_ns in ((1, 5_000), (2, 5_000), (3, 4_000), (4, 3_000))
    ]


def test_a_row_that_comes_again_is_passed_over_and_counted() -> None:
    bench = Bench()

    bench.metrics(
        source(),
        row(1, {"loss": 1.0}),
        row(2, {"loss": 2.0}),
        row(1, {"loss": 1.0}),
        row(2, {"loss": 2.0}),
    )

    assert bench.records == [
        trainer_row(1, {"loss": 1.0}),
        trainer_row(2, {"loss": 2.0}),
    ]
    assert (bench.translator.redelivered(), bench.counts()) == (2, {})


def test_a_gap_in_a_local_segment_delays_nothing_and_is_reported() -> None:
    bench = Bench()

    bench.metrics(source(), row(1, {"loss": 1.0}), row(5, {"loss": 5.0}))

    assert bench.records == [
        trainer_row(1, {"loss": 1.0}),
        trainer_row(5, {"loss": 5.0}),
    ]
    assert bench.translator.missing_rows() == 3


def test_rows_from_a_receiver_wait_for_those_before_them() -> None:
    bench = Bench()

    late = [
        bench.request(metrics_request((who(), [row(seq, {"loss": float(seq)})])))
        for seq in (3, 2)
    ]
    rest = bench.request(metrics_request((who(), [row(1, {"loss": 1.0})])))

    assert late == [[], []]
    assert rest == [trainer_row(seq, {"loss": float(seq)}) for seq in (1, 2, 3)]


def test_behind_a_row_that_never_comes_the_others_wait_once_and_no_longer_than_row_wait() -> (
    None
):
    bench = Bench()
    bench.request(
        metrics_request(
            (
                who(),
                [row(1, {"loss": 1.0}), row(3, {"loss": 3.0}), row(4, {"loss": 4.0})],
            )
        )
    )

    early = bench.tick(9.9)
    due = bench.tick(0.1)
    after = bench.request(metrics_request((who(), [row(5, {"loss": 5.0})])))

    assert early == []
    assert due == [trainer_row(3, {"loss": 3.0}), trainer_row(4, {"loss": 4.0})]
    assert after == [trainer_row(5, {"loss": 5.0})]
    assert bench.translator.missing_rows() == 1


def test_a_row_that_comes_after_it_was_given_up_is_written_and_no_longer_missing() -> (
    None
):
    bench = Bench()
    bench.request(metrics_request((who(), [row(2, {"loss": 2.0})])))
    bench.tick(10)

    records = bench.request(metrics_request((who(), [row(1, {"loss": 1.0})])))

    assert records == [trainer_row(1, {"loss": 1.0})]
    assert bench.translator.missing_rows() == 0


def test_what_time_let_through_is_known_behind_a_restart() -> None:
    bench = Bench()
    bench.request(
        metrics_request((who(), [row(1, {"loss": 1.0}), row(3, {"loss": 3.0})]))
    )
    bench.restart()
    bench.tick(10)
    bench.restart()

    again = bench.request(
        metrics_request((who(), [row(3, {"loss": 3.0}), row(4, {"loss": 4.0})]))
    )

    assert again == [trainer_row(4, {"loss": 4.0})]
    assert bench.translator.missing_rows() == 1


def test_a_late_row_does_not_move_its_axis_back() -> None:
    bench = Bench()
    bench.request(metrics_request((who(), [row(2, {"loss": 2.0})])))
    bench.tick(10)
    bench.request(metrics_request((who(), [row(1, {"loss": 1.0})])))

    records = bench.request(
        metrics_request((who("i2", "explorer"), [row(1, {"reward": 1.0})]))
    )

    assert records[0].steps == {"trainer/step": 2, "explorer/step": 1}


def test_the_pieces_of_a_row_are_joined() -> None:
    whole = row(1, {"a": 1.0, "b": 2.0, "c": 3.0})
    bench = Bench()

    first = bench.request(metrics_request((who(), [only(whole, "b")])))
    second = bench.request(metrics_request((who(), [only(whole, "rl.row", "a")])))
    third = bench.request(metrics_request((who(), [only(whole, "c")])))

    assert (first, second) == ([], [])
    assert third == [trainer_row(1, {"b": 2.0, "a": 1.0, "c": 3.0})]


def test_a_request_grouped_by_metric_and_cut_through_all_its_rows_gives_whole_rows() -> (
    None
):
    rows = [row(seq, {"a": float(seq), "b": -float(seq)}) for seq in range(1, 6)]
    merged = [
        pb.Metric(
            name=name,
            gauge=pb.Gauge(
                data_points=[
                    m.gauge.data_points[0]
                    for scope in rows
                    for m in scope.metrics
                    if m.name == name
                ]
            ),
        )
        for name in ("a", "b", "rl.row")
    ]
    bench = Bench()

    bench.request(
        metrics_request((who(), [pb.ScopeMetrics(scope=SCOPE, metrics=merged[:1])]))
    )
    bench.request(
        metrics_request((who(), [pb.ScopeMetrics(scope=SCOPE, metrics=merged[1:])]))
    )

    assert bench.records == [
        trainer_row(seq, {"a": float(seq), "b": -float(seq)}) for seq in range(1, 6)
    ]


def test_a_row_that_stays_incomplete_is_written_as_it_is_and_a_later_piece_becomes_a_further_row() -> (
    None
):
    whole = row(1, {"a": 1.0, "b": 2.0, "c": 3.0})
    bench = Bench()
    bench.request(metrics_request((who(), [only(whole, "rl.row", "a")])))

    cut = bench.tick(10)
    later = [
        bench.request(metrics_request((who(), [only(whole, name)])))
        for name in ("b", "b", "c", "c", "a")
    ]

    assert cut == [trainer_row(1, {"a": 1.0})]
    assert later == [
        [trainer_row(1, {"b": 2.0}, id_="m:i1:1:1")], [], [trainer_row(1, {"c": 3.0}, id_="m:i1:1:2")], [], [],
    ]  # fmt: skip
    assert bench.counts() == {"row/incomplete": 1}
    assert bench.translator.missing_rows() == 0


def test_a_piece_whose_row_never_said_its_number_is_written_under_its_time_once_a_number_is_missing() -> (
    None
):
    whole = row(1, {"a": 1.0, "b": 2.0})
    bench = Bench()
    bench.request(metrics_request((who(), [only(whole, "a")])))

    before = bench.tick(60)
    bench.request(metrics_request((who(), [row(2, {"a": 3.0})])))
    at_once, cut = bench.tick(1), bench.tick(10)
    later = bench.request(metrics_request((who(), [only(whole, "b", "rl.row")])))
    again = bench.request(metrics_request((who(), [whole])))

    assert (before, at_once) == ([], [])
    assert cut == [
        trainer_row(1, {"a": 1.0}, id_=f"m:i1:t{T0 + 1}"),
        trainer_row(2, {"a": 3.0}),
    ]
    assert later == [trainer_row(1, {"b": 2.0}, id_=f"m:i1:t{T0 + 1}:1")]
    assert again == []
    assert bench.translator.missing_rows() == 0


def test_a_piece_that_comes_again_after_its_row_was_written_is_passed_over() -> None:
    whole = row(1, {"a": 1.0, "b": 2.0})
    bench = Bench()
    bench.request(metrics_request((who(), [whole, row(2, {"a": 3.0})])))

    again = bench.request(metrics_request((who(), [only(whole, "a")])))

    assert again == []
    assert (bench.tick(20), bench.translator.redelivered()) == ([], 1)


def test_points_without_a_value_make_no_row() -> None:
    bench = Bench()
    empty = only(row(1, {"loss": 0.5}), "loss")
    empty.metrics[0].gauge.data_points[0].ClearField("as_double")

    records = bench.metrics(source(), empty) + bench.close()

    assert [record for record in records if isinstance(record, Row)] == []
    assert (bench.translator.waiting().rows, bench.counts()) == (0, {})


def test_what_waits_is_bounded_and_the_oldest_goes_first() -> None:
    bench = Bench(options=TranslationOptions(run_id=RUN, max_waiting_bytes=400))

    for seq in range(2, 20):
        bench.request(metrics_request((who(), [row(seq, {"loss": float(seq)})])))

    assert [record.step for record in bench.records] == list(range(2, 20))
    assert bench.translator.waiting().rows == 0


def test_metrics_of_our_scope_that_are_not_row_are_taken_as_foreign_ones() -> None:
    scope = pb.ScopeMetrics(
        scope=SCOPE, metrics=[gauge("otel_bridge.dropped", 4, T0, {"reason": "disk"})]
    )
    bench = Bench()

    bench.metrics(source(), scope)

    assert [
        (r.role, r.step, r.time_unix_ns, dict(r.values)) for r in bench.records
    ] == [("trainer", None, T0, {"trainer/otel_bridge.dropped/reason:disk": 4})]


def test_two_values_with_one_full_key_make_no_row_wait_and_one_of_them_is_counted() -> (
    None
):
    bench = Bench()

    rows = bench.metrics(
        source(), row(1, {"loss": 1.0, "trainer/loss": 2.0}), row(2, {"loss": 3.0})
    )

    assert [record.values for record in rows if isinstance(record, Row)] == [
        {"trainer/loss": 2.0},
        {"trainer/loss": 3.0},
    ]
    assert bench.counts() == {"same_key": 1}


def test_two_values_with_one_full_key_of_a_row_that_was_cut_and_came_twice_are_counted_once() -> (
    None
):
    bench = Bench()
    whole = row(1, {"loss": 1.0, "trainer/loss": 2.0, "lr": 3.0})
    head, rest = pb.ScopeMetrics(scope=SCOPE), pb.ScopeMetrics(scope=SCOPE)
    head.metrics.extend(whole.metrics[:2])
    rest.metrics.extend(whole.metrics[2:])

    for scope in (head, head, rest, head):
        bench.request(metrics_request((who(), [scope])))

    assert [record.values for record in bench.records if isinstance(record, Row)] == [
        {"trainer/loss": 2.0, "trainer/lr": 3.0}
    ]
    assert bench.counts() == {"same_key": 1}


def part(row_: pb.ScopeMetrics, step: int, *names: str) -> pb.ScopeMetrics:
    """These metrics of a row, at another step: what one call adds to a row that several calls fill."""
    found = only(row_, *names)
    for metric in found.metrics:
        for point in metric.gauge.data_points:
            next(
                pair for pair in point.attributes if pair.key == "rl.step"
            ).value.int_value = step
    return found


def test_a_row_in_parts_waits_for_its_number_however_long_and_has_its_last_values_and_step() -> (
    None
):
    bench = Bench()
    first, later = row(2, {"loss": 1.0, "lr": 0.1}), row(2, {"loss": 0.5, "acc": 0.9})

    bench.metrics(source(), part(first, 0, "loss", "lr"))
    bench.metrics(source(), row(1, {"between": 1.0}))
    bench.restart()
    bench.tick(3_600)
    before = list(bench.records)
    bench.metrics(
        source(),
        part(later, 0, "loss", "acc"),
        part(row(2, {"a": 1, "b": 2, "c": 3}), 7, "rl.row"),
    )

    assert [dict(one.values) for one in before if isinstance(one, Row)] == [
        {"trainer/between": 1.0}
    ]
    values = {"trainer/loss": 0.5, "trainer/lr": 0.1, "trainer/acc": 0.9}
    assert bench.records[len(before) :] == [
        Row("m:i1:2", "trainer", 7, "trainer/step", T0 + 2, values, {"trainer/step": 7})
    ]


def test_a_row_in_parts_of_a_killed_process_is_written_at_its_end_without_a_count_of_losses() -> (
    None
):
    bench = Bench()

    bench.metrics(source(), row(1, {"loss": 1.0}), only(row(2, {"loss": 0.5}), "loss"))
    bench.logs(source(), end("killed", 0))
    bench.tick()

    found = [
        (one.step, dict(one.values)) for one in bench.records if isinstance(one, Row)
    ]
    assert found == [(1, {"trainer/loss": 1.0}), (2, {"trainer/loss": 0.5})]
    assert bench.counts() == {}


def test_a_row_in_parts_from_a_receiver_is_one_record_with_its_last_values_however_long_it_was_open() -> (
    None
):
    bench = Bench()
    first, later = row(2, {"loss": 1.0, "lr": 0.1}), row(2, {"loss": 0.5, "acc": 0.9})

    bench.request(metrics_request((who(), [part(first, 0, "loss", "lr")])))
    bench.request(metrics_request((who(), [row(1, {"between": 1.0})])))
    bench.restart()
    before = [*bench.records, *bench.tick(60)]
    number = part(row(2, {"a": 1, "b": 2, "c": 3}), 7, "rl.row")
    ended = bench.request(
        metrics_request((who(), [part(later, 0, "loss", "acc"), number]))
    )

    assert [dict(one.values) for one in before if isinstance(one, Row)] == [
        {"trainer/between": 1.0}
    ]
    values = {"trainer/loss": 0.5, "trainer/lr": 0.1, "trainer/acc": 0.9}
    assert ended == [
        Row("m:i1:2", "trainer", 7, "trainer/step", T0 + 2, values, {"trainer/step": 7})
    ]


def test_a_row_that_is_added_to_very_often_takes_the_memory_of_its_values_only() -> (
    None
):
    bench = Bench(options=TranslationOptions(run_id=RUN, max_waiting_bytes=400))

    for number in range(20):
        bench.metrics(source(), only(row(1, {"loss": float(number)}), "loss"))
    bench.metrics(source(), only(row(1, {"loss": 0.0}), "rl.row"))

    assert bench.records == [trainer_row(1, {"loss": 19.0})]
