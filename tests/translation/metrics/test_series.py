"""Series of third-party metrics with many attributes: short ones stay readable, and no key changes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb

from otel_bridge.records import Row
from otel_bridge.translation.metrics.keys import attribute_suffix
from support.otlp.otlp_samples import (
    RUN,
    T0,
    Bench,
    metrics_request,
    pairs,
    third_party,
)

GEN_AI = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "openai",
    "gen_ai.request.model": "Qwen-Qwen3-30B-A3B-Instruct-2507",
    "gen_ai.response.model": "Qwen-Qwen3-30B-A3B-Instruct-2507",
    "server.address": "inference-gateway.internal.example.com",
    "server.port": 8000,
}
AGENT = {"service.name": "agent", "rl.run.id": RUN}


def usage(*token_types: str, at_ns: int = T0, **more: object) -> bytes:
    """Token usage as the GenAI instrumentations send it: a histogram with a point for each kind of token."""
    points = [
        pb.HistogramDataPoint(
            attributes=pairs({**GEN_AI, **more, "gen_ai.token.type": kind}), time_unix_nano=at_ns, count=1,
            sum=len(kind), bucket_counts=[1],
        )
        for kind in token_types
    ]  # fmt: skip
    metric = pb.Metric(
        name="gen_ai.client.token.usage", histogram=pb.Histogram(data_points=points)
    )
    return metrics_request((AGENT, [third_party(metric)]))


def keys(bench: Bench) -> list[str]:
    rows = [record for record in bench.records if isinstance(record, Row)]
    return [
        key.removeprefix("agent/gen_ai.client.token.usage")
        for row in rows
        for key in row.values
    ]


def test_input_and_output_tokens_can_be_distinguished_by_a_reader() -> None:
    bench = Bench()

    bench.request(usage("input", "output"))

    shown = keys(bench)
    assert [re.search(r"token\.type:(\w+)", key) is not None for key in shown] == [
        True,
        True,
    ]
    assert {
        key.replace("type:input", "").replace("type:output", "") for key in shown
    } == {shown[0].replace("type:input", "")}
    assert all("server.address" not in key and len(key) <= 120 for key in shown)


def test_a_series_keeps_its_key_when_others_appear_and_after_a_restart() -> None:
    bench = Bench()

    bench.request(usage("input"))
    bench.restart()
    bench.request(usage("output", at_ns=T0 + 1))
    bench.request(usage("input", "output", at_ns=T0 + 2, **{"server.port": 8001}))
    bench.restart()
    bench.request(usage("input", at_ns=T0 + 3))

    first, output, other_input, other_output, again = keys(bench)
    assert again == first
    assert len({first, output, other_input, other_output}) == 4
    assert "token.type:input" in first
    assert "token.type:output" in output
    assert all("server.port:8001" in key for key in (other_input, other_output))


def test_short_sets_of_attributes_are_shown_whole() -> None:
    assert attribute_suffix({"method": "GET", "code": 200}) == "/code:200 method:GET"


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from("abcdef"),
            st.text("xyz/", min_size=20, max_size=70),
            min_size=2,
            max_size=6,
        ),
        max_size=8,
    )
)
def test_any_series_have_names_of_their_own_that_every_tracker_takes(
    series: list[Mapping[str, object]],
) -> None:
    names = {attribute_suffix(attributes) for attributes in series}

    assert len(names) == len(
        {tuple(sorted(attributes.items())) for attributes in series}
    )
    assert all(
        re.fullmatch(r"(/[\w.\-: ]+)?", name, re.ASCII) and len(name) <= 120
        for name in names
    )
