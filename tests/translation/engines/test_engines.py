"""Metrics of vLLM and SGLang -> rows of the trainer's steps, equal to a computation by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_bridge.bridge.engines.endpoint import engine_request
from otel_bridge.records import Config, Record, Row
from otel_bridge.translation.engines import pipeline, points
from otel_bridge.translation.engines.points import Series, engine_of
from support.engines.engine import FAMILIES, Engine, expected
from support.otlp.otlp_samples import (
    BRIDGE,
    RUN,
    T0,
    Bench,
    S,
    end,
    metrics_request,
    pairs,
    row,
    source,
    third_party,
)

TRAINER = source("i1", "trainer")
HERE = Resource.FromString(TRAINER.resource)


def job() -> Bench:
    bench = Bench()
    bench.open(TRAINER)
    bench.metrics(TRAINER, row(1, {"loss": 1.0}))
    bench.records.clear()
    return bench


def scrape(
    bench: Bench, engine: Engine, address: str, second: float
) -> dict[tuple[str, str], Any]:
    """Let the bridge read an engine, and return what it had."""
    bench.now_ns = T0 + int(second * S)
    request = engine_request(engine.text(), HERE, address, bench.now_ns)
    assert request is not None
    bench.request(request, sender=BRIDGE)
    return engine.numbers()


def step(bench: Bench, number: int) -> list[Row]:
    """Log a step, and return the rows of engines that it completes."""
    return of_engines(bench.metrics(TRAINER, row(number, {"loss": 1.0})))


def of_engines(records: list[Record]) -> list[Row]:
    return [
        record
        for record in records
        if isinstance(record, Row) and record.role == "engine"
    ]


def under(values: dict[str, float], prefix: str = "") -> dict[str, float]:
    return {f"engine/{prefix}{key}": value for key, value in values.items()}


@pytest.mark.parametrize("version", FAMILIES)
def test_every_family_of_two_engines_equals_a_computation_by_hand(version: str) -> None:
    bench = job()
    engines = Engine(version, seed=1), Engine(version, seed=2)
    readings: tuple[list[dict[tuple[str, str], Any]], ...] = ([], [])
    addresses = "10.0.0.1:8000", "10.0.0.2:8000"

    for number, engine in enumerate(engines):
        engine.work()
        readings[number].append(scrape(bench, engine, addresses[number], 1 + number))
    step(bench, 2)
    for second in (10, 20):
        for number, engine in enumerate(engines):
            engine.work()
            readings[number].append(
                scrape(bench, engine, addresses[number], second + number)
            )
    (shown,) = step(bench, 3)

    parts = [(engines[number], readings[number], 19.0) for number in (0, 1)]
    assert (shown.step, shown.axis, shown.role, shown.time_unix_ns) == (
        3,
        "trainer/step",
        "engine",
        T0 + 21 * S,
    )
    assert dict(shown.values) == pytest.approx(
        {
            "engine/engines": 2,
            **under(expected(parts)),
            **under(expected(parts[:1]), "10.0.0.1:8000/"),
            **under(expected(parts[1:]), "10.0.0.2:8000/"),
        }
    )


def test_an_engine_that_a_collector_names_by_host_and_port_is_one_of_its_own() -> None:
    resource = {"server.address": "h", "server.port": "8000", "host.name": "n"}

    assert engine_of(resource) == "h:8000"
    assert engine_of({"host.name": "n"}) == "n"
    assert engine_of({**resource, "service.instance.id": "a:1"}) == "a:1"


def test_gauges_that_are_beyond_a_double_together_make_a_row_all_the_same() -> None:
    series = [Series("gauge", 2, 0, (1.7e308,), added=[1.7e308], covered=1)] * 2

    assert dict(points.row_values(series)) == {"": math.inf, "/sum": math.inf}


def test_a_restart_of_an_engine_is_skipped_and_counted() -> None:
    bench, engine = job(), Engine("vllm 0.9")
    engine.work()
    scrape(bench, engine, "a:8000", 1)
    engine.work()
    before = scrape(bench, engine, "a:8000", 2)
    engine.restart()
    engine.work()
    again = [scrape(bench, engine, "a:8000", 3)]
    step(bench, 2)
    engine.work()
    again.append(scrape(bench, engine, "a:8000", 6))

    (shown,) = step(bench, 3)

    assert (
        before["counter", "vllm:prompt_tokens"]
        > again[0]["counter", "vllm:prompt_tokens"]
    )
    assert dict(shown.values) == pytest.approx(
        {
            "engine/engines": 1,
            **under(expected([(engine, again, 3.0)])),
            **under(expected([(engine, again, 3.0)]), "a:8000/"),
        }
    )
    assert bench.counts() == {"engine/restarted": 1}


def test_a_step_in_which_an_engine_restarts_has_what_was_counted_before_and_after() -> (
    None
):
    bench = job()
    for second, value in ((1, 100.0), (2, 110.0), (3, 5.0), (5, 45.0)):
        bench.request(
            scraped(counter("vllm:prompt_tokens_total", value, second)), sender=BRIDGE
        )

    (shown,) = step(bench, 2)

    assert shown.values["engine/vllm:prompt_tokens/per_s"] == pytest.approx(
        (10 + 40) / (1 + 2)
    )


def test_engines_come_and_go() -> None:
    bench, first, second = job(), Engine("vllm 0.8", 1), Engine("sglang 0.5.5", 2)
    for engine, address, times in ((first, "a:1", (1, 2)), (second, "b:1", (1.5, 2.5))):
        for time in times:
            engine.work()
            scrape(bench, engine, address, time)
    (both,) = step(bench, 2)
    second.work()
    scrape(bench, second, "b:1", 8)
    (one,) = step(bench, 3)

    none = step(bench, 4)

    assert both.values["engine/engines"] == 2
    assert one.values["engine/engines"] == 1
    assert not [key for key in one.values if "vllm" in key or "a:1" in key]
    assert none == []


def test_what_a_kill_of_the_bridge_finds_again_gives_the_same_row() -> None:
    engine, other = Engine("sglang 0.4.9", 3), Engine("sglang 0.4.9", 3)
    undisturbed, killed = job(), job()
    for bench, served in ((undisturbed, engine), (killed, other)):
        for second in (1, 2, 3):
            served.work()
            scrape(bench, served, "a:1", second)
            if bench is killed:
                bench.restart()
    redelivered = engine_request(other.text(), HERE, "a:1", T0 + 3 * S)
    assert redelivered is not None
    killed.request(redelivered, sender=BRIDGE)

    assert step(killed, 2) == step(undisturbed, 2)


def test_a_collector_that_reads_the_engines_gives_the_same_row() -> None:
    bench, ours = job(), job()
    engine = Engine("vllm 0.9", 4)
    for second in (1, 4):
        engine.work()
        scrape(ours, engine, "10.0.0.1:8000", second)
        request = ExportMetricsServiceRequest.FromString(
            engine_request(engine.text(), Resource(), "", T0 + second * S) or b""
        )
        scopes = request.resource_metrics[0].scope_metrics
        who = {
            "rl.run.id": RUN,
            "rl.role": "engine",
            "service.name": "e",
            "service.instance.id": "10.0.0.1:8000",
        }
        bench.request(metrics_request((who, scopes)))

    assert step(bench, 2) == step(ours, 2)


def test_a_label_may_hold_any_character_but_the_end_of_a_line() -> None:
    text = 'vllm:num_requests_running{adapter="a\u2028b\x0cc"} 3\n'

    request = ExportMetricsServiceRequest.FromString(
        engine_request(text, HERE, "a:1", T0) or b""
    )

    (point,) = request.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points
    assert (point.attributes[0].value.string_value, point.as_double) == (
        "a\u2028b\x0cc",
        3,
    )


def test_a_collector_that_never_stops_reading_engines_does_not_keep_the_run_open() -> (
    None
):
    bench = job()
    who = {"rl.run.id": RUN, "rl.role": "engine", "service.instance.id": "a:1"}
    for second in (1, 2):
        bench.request(
            metrics_request(
                (
                    who,
                    [third_party(counter("vllm:prompt_tokens_total", second, second))],
                )
            )
        )
    bench.logs(TRAINER, end("finished", 1, last_row=1))
    bench.tick(1)
    assert bench.translator.status() == "finished"

    bench.request(
        metrics_request(
            (who, [third_party(counter("vllm:prompt_tokens_total", 9.0, 3))])
        )
    )
    bench.tick(1)

    assert bench.translator.status() == "finished"


def test_without_a_trainer_rows_are_placed_by_time_each_minute() -> None:
    bench = Bench()
    bench.open(TRAINER)
    for second in (1, 31):
        bench.now_ns = T0 + second * S
        bench.request(
            scraped(counter("sglang:num_requests_total", second * 2.0, second)),
            sender=BRIDGE,
        )

    early = of_engines(bench.tick(20))
    (shown,) = of_engines(bench.tick(20))

    assert early == []
    assert (shown.step, shown.axis) == (None, None)
    assert shown.values["engine/sglang:num_requests/per_s"] == pytest.approx(2.0)


def test_a_bridge_that_was_started_again_waits_a_minute_for_the_row_without_a_step() -> (
    None
):
    bench = Bench()
    bench.open(TRAINER)
    for second in (1, 2):
        bench.now_ns = T0 + second * S
        bench.request(
            scraped(counter("sglang:num_requests_total", second * 2.0, second)),
            sender=BRIDGE,
        )
    bench.restart()

    early = of_engines(bench.tick(1))
    bench.request(scraped(counter("sglang:num_requests_total", 8.0, 4)), sender=BRIDGE)
    (shown,) = of_engines(bench.tick(61))

    assert early == []
    assert shown.values["engine/sglang:num_requests/per_s"] == pytest.approx(2.0)


def test_an_engine_whose_clock_is_ahead_does_not_date_the_rows_of_others() -> None:
    bench = Bench()
    bench.open(TRAINER)
    for address, seconds in (("ahead:1", (500, 501)), ("a:1", (1, 2))):
        engine = Engine("vllm 0.9", 1)
        for second in seconds:
            engine.work()
            scrape(bench, engine, address, second)
    first = of_engines(bench.tick(600))
    engine.work()
    scrape(bench, engine, "a:1", 3)
    second = of_engines(bench.tick(1300))

    (last,) = second
    assert last.values["engine/engines"] == 1
    assert last.time_unix_ns == T0 + 3 * S
    assert last.id not in {shown.id for shown in first}


def test_a_step_that_was_logged_again_by_another_rank_gives_no_further_row() -> None:
    bench = job()
    bench.request(scraped(counter("vllm:prompt_tokens_total", 1.0, 1)), sender=BRIDGE)
    bench.request(scraped(counter("vllm:prompt_tokens_total", 2.0, 2)), sender=BRIDGE)
    assert len(step(bench, 3)) == 1
    bench.request(scraped(counter("vllm:prompt_tokens_total", 3.0, 3)), sender=BRIDGE)
    other = source("i2", "trainer", rl_rank=1)
    bench.open(other)

    late = of_engines(
        bench.metrics(other, row(2, {"loss": 1.0}), row(3, {"loss": 1.0}))
    )

    assert late == []


def test_more_engines_than_have_keys_of_their_own_are_counted_and_are_in_the_values_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pipeline, "_MAX_SHOWN", 1)
    monkeypatch.setattr(pipeline, "_MAX_ENGINES", 2)
    bench = job()
    for address in ("a:1", "b:1", "c:1"):
        for second in (1, 2):
            bench.request(
                scraped(
                    counter("vllm:prompt_tokens_total", second * 5.0, second), address
                ),
                sender=BRIDGE,
            )

    (shown,) = step(bench, 2)

    assert dict(shown.values) == {
        "engine/engines": 2,
        "engine/vllm:prompt_tokens/per_s": 10.0,
        "engine/a:1/vllm:prompt_tokens/per_s": 5.0,
    }
    assert bench.counts() == {"engine/too_many": 2, "engine/not_shown": 1}


def test_engines_whose_buckets_differ_are_not_mixed() -> None:
    bench = job()
    for address, bounds in (
        ("a:1", [1.0, 2.0]),
        ("b:1", [1.0, 2.0]),
        ("c:1", [10.0, 20.0]),
    ):
        for second in (1, 2):
            counts = [0, 10 * second, 0]
            bench.request(
                scraped(histogram("vllm:x_seconds", counts, bounds, second), address),
                sender=BRIDGE,
            )

    (shown,) = step(bench, 2)

    assert shown.values["engine/vllm:x_seconds/p50"] == pytest.approx(1.5)
    assert shown.values["engine/c:1/vllm:x_seconds/p50"] == pytest.approx(15.0)


def test_buckets_that_change_in_a_step_begin_anew_also_where_they_are_as_many() -> None:
    bench = job()
    old_bounds, new_bounds = [1.0, 2.0], [10.0, 20.0]
    readings = [
        ([0, 0, 10], old_bounds),
        ([0, 0, 20], old_bounds),
        ([0, 30, 30], new_bounds),
        ([0, 40, 30], new_bounds),
    ]
    for second, (counts, bounds) in enumerate(readings, 1):
        bench.request(
            scraped(histogram("vllm:x_seconds", counts, bounds, second)), sender=BRIDGE
        )

    (shown,) = step(bench, 2)

    assert shown.values["engine/vllm:x_seconds/p50"] == pytest.approx(15.0)
    assert bench.counts() == {"engine/restarted": 1}


def test_info_families_are_the_config_of_the_role_and_change_with_the_engine() -> None:
    bench = job()
    info = "# TYPE vllm:cache_config_info gauge\n"
    texts = [
        info
        + 'vllm:cache_config_info{block_size="16",engine="0",cache_dtype="auto"} 1\n',
        info
        + 'vllm:cache_config_info{block_size="16",engine="0",cache_dtype="auto"} 1\n',
        info + 'vllm:cache_config_info{block_size="32",engine="0"} 1\n',
        '# TYPE vllm:lora_requests_info gauge\nvllm:lora_requests_info{max_lora="1"} 1.8e9\n',
    ]
    for second, text in enumerate(texts):
        bench.now_ns = T0 + second * S
        request = engine_request(text, HERE, "e:1", bench.now_ns)
        assert request is not None
        bench.request(request, sender=BRIDGE)
    step(bench, 2)

    configs = [record for record in bench.records if isinstance(record, Config)]
    assert [(config.role, config.config) for config in configs] == [
        ("engine", {"e:1": {"vllm:cache_config_info": labels}})
        for labels in (
            {"block_size": "16", "cache_dtype": "auto"},
            {"block_size": "32"},
        )
    ]
    assert of_engines(bench.records) == []


def test_every_engine_that_is_read_has_its_facts_in_the_config() -> None:
    bench = job()
    info = '# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{block_size="16"} 1\n'
    addresses = [f"e:{number}" for number in range(40)]
    for address in addresses:
        request = engine_request(info, HERE, address, bench.now_ns)
        assert request is not None
        bench.request(request, sender=BRIDGE)

    configs = [record for record in bench.records if isinstance(record, Config)]

    assert sorted(configs[-1].config) == sorted(addresses)
    assert bench.counts() == {}


def test_a_family_that_an_engine_no_longer_sends_is_named_until_it_sends_it_again() -> (
    None
):
    bench = job()
    whole = "# TYPE vllm:old gauge\nvllm:old 1\n# TYPE vllm:new gauge\nvllm:new 1\n"
    problems: list[list[str]] = []
    for number, text in enumerate((whole, whole.replace("old", "newer"), whole)):
        bench.now_ns = T0 + number * 100 * S
        request = engine_request(text, HERE, "e:1", bench.now_ns)
        assert request is not None
        bench.request(request, sender=BRIDGE)
        step(bench, number + 2)
        problems.append(bench.translator.engine_problems())

    assert problems == [
        [],
        ["e:1 no longer sends vllm:old"],
        ["e:1 no longer sends vllm:newer"],
    ]


def test_series_that_are_unusable_cost_only_themselves() -> None:
    bench = job()
    for second in (1, 2):
        bench.request(
            scraped(
                counter("vllm:good_total", second * 1.0, second),
                counter("vllm:bad_total", float("nan"), second),
                histogram("vllm:odd", [1], [1.0, 2.0], second),
            ),
            sender=BRIDGE,
        )

    (shown,) = step(bench, 2)

    assert set(shown.values) == {
        "engine/engines",
        "engine/vllm:good/per_s",
        "engine/10.0.0.1:8000/vllm:good/per_s",
    }


def counter(name: str, value: float, second: float) -> pb.Metric:
    point = pb.NumberDataPoint(time_unix_nano=T0 + int(second * S), as_double=value)
    temporality = pb.AGGREGATION_TEMPORALITY_CUMULATIVE
    return pb.Metric(
        name=name,
        sum=pb.Sum(
            data_points=[point], aggregation_temporality=temporality, is_monotonic=True
        ),
    )


def histogram(
    name: str, counts: list[int], bounds: list[float], second: float
) -> pb.Metric:
    point = pb.HistogramDataPoint(
        time_unix_nano=T0 + int(second * S),
        bucket_counts=counts,
        explicit_bounds=bounds,
    )
    temporality = pb.AGGREGATION_TEMPORALITY_CUMULATIVE
    return pb.Metric(
        name=name,
        histogram=pb.Histogram(
            data_points=[point], aggregation_temporality=temporality
        ),
    )


def scraped(*metrics: pb.Metric | str) -> bytes:
    """A request of the bridge for one engine, whose address may follow the metrics."""
    address = next((part for part in metrics if isinstance(part, str)), "10.0.0.1:8000")
    families = [metric for metric in metrics if isinstance(metric, pb.Metric)]
    described = Resource.FromString(TRAINER.resource)
    described.attributes.extend(pairs({"rl.system": True, "rl.engine": address}))
    part = pb.ResourceMetrics(
        resource=described, scope_metrics=[third_party(*families)]
    )
    return ExportMetricsServiceRequest(resource_metrics=[part]).SerializeToString()
