from __future__ import annotations

import pytest

from otel_bridge.records import Alert, Config, Summary
from otel_bridge.translation import events
from otel_bridge.translation.metrics import summaries
from support.otlp.otlp_samples import LOGS, T0, Bench, event, logs_request, source, who


def test_configs_of_a_role_are_merged_leaf_by_leaf() -> None:
    bench = Bench()

    first = bench.logs(
        source(),
        event("rl.run.config", 1, {"lr": 1e-6, "actor": {"size": 7, "layers": [1, 2]}}),
    )
    second = bench.logs(
        source(),
        event("rl.run.config", 2, {"actor": {"size": 8}, "seed": None}, T0 + 1),
    )

    assert first == [
        Config(
            "c:i1:1",
            "trainer",
            {"lr": 1e-6, "actor": {"size": 7, "layers": [1, 2]}},
            T0,
        )
    ]
    assert second == [
        Config(
            "c:i1:2",
            "trainer",
            {"lr": 1e-6, "actor": {"size": 8, "layers": [1, 2]}, "seed": None},
            T0 + 1,
        )
    ]
    assert bench.state.get("config/trainer") == second[0].config


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (2, 1, 0), (1, 0, 2)])
def test_an_entry_that_replaces_takes_the_place_of_a_nested_one_in_whatever_order_they_come(
    order: tuple[int, ...],
) -> None:
    bench = Bench()
    sent = [
        event(
            "rl.run.config",
            1,
            {"lr": 1, "actor": {"size": 7, "deep": {"a": 1}}, "word": {"x": 1}},
            T0,
        ),
        event(
            "rl.run.config",
            2,
            {"actor": {"size": 8}, "word": "w"},
            T0 + 1,
            rl_config_replace=True,
        ),
        event("rl.run.config", 3, {"actor": {"layers": 2}}, T0 + 2),
    ]

    for number in order:
        bench.request(logs_request((who(), [sent[number]])), LOGS)

    assert bench.state.get("config/trainer") == {
        "lr": 1,
        "actor": {"size": 8, "layers": 2},
        "word": "w",
    }


def test_of_two_configs_of_one_process_the_higher_number_holds_in_whatever_order_they_come() -> (
    None
):
    bench = Bench()

    bench.request(
        logs_request((who(), [event("rl.run.config", 2, {"lr": 2.0, "b": 1})])), LOGS
    )
    late = bench.request(
        logs_request((who(), [event("rl.run.config", 1, {"lr": 1.0, "a": 1}, T0 + 9)])),
        LOGS,
    )

    assert late == [Config("c:i1:1", "trainer", {"lr": 2.0, "b": 1, "a": 1}, T0 + 9)]


def test_of_configs_of_two_processes_the_later_one_holds() -> None:
    bench = Bench()

    bench.logs(source("i2"), event("rl.run.config", 1, {"lr": 2.0}, T0 + 5))
    late = bench.logs(
        source("i1"), event("rl.run.config", 1, {"lr": 1.0, "seed": 3}, T0)
    )

    assert late == [Config("c:i1:1", "trainer", {"lr": 2.0, "seed": 3}, T0)]


def test_roles_have_configs_of_their_own() -> None:
    bench = Bench()

    bench.logs(source("i1"), event("rl.run.config", 1, {"lr": 1.0}))
    bench.logs(source("i2", None), event("rl.run.config", 1, {"seed": 1}))
    bench.logs(
        source("i2", None), event("rl.run.config", 2, {"k": 8}, rl_role="explorer")
    )

    assert [(r.role, r.config) for r in bench.records if isinstance(r, Config)] == [
        ("trainer", {"lr": 1.0}), (None, {"seed": 1}), ("explorer", {"k": 8}),
    ]  # fmt: skip


def test_a_summary_holds_what_changed_under_full_keys() -> None:
    bench = Bench()

    first = bench.logs(
        source(),
        event("rl.run.summary", 1, {"best": 0.5, "eval": {"ok": True, "word": "yes"}}),
    )
    second = bench.logs(
        source(),
        event("rl.run.summary", 2, {"best": 0.75, "eval": {"ok": True}}, T0 + 1),
    )
    other = bench.logs(
        source(), event("rl.run.summary", 3, {"best": 1}, T0 + 2, rl_role="judge")
    )

    values = {"trainer/best": 0.5, "trainer/eval/ok": True, "trainer/eval/word": "yes"}
    assert first == [Summary("s:i1:1", "trainer", values, T0)]
    assert second == [Summary("s:i1:2", "trainer", {"trainer/best": 0.75}, T0 + 1)]
    assert other == [Summary("s:i1:3", "judge", {"judge/best": 1}, T0 + 2)]


def test_a_summary_that_is_not_a_number_changes_once() -> None:
    bench = Bench()

    sent = [
        bench.logs(source(), event("rl.run.summary", number, {"best": float("nan")}))
        for number in (1, 2)
    ]

    assert [len(records) for records in sent] == [1, 0]


def test_the_latest_value_of_a_summary_holds_in_whatever_order_they_come() -> None:
    bench = Bench()

    bench.request(
        logs_request((who(), [event("rl.run.summary", 2, {"best": 2.0})])), LOGS
    )
    late = bench.request(
        logs_request(
            (who(), [event("rl.run.summary", 1, {"best": 1.0, "a": 1}, T0 + 9)])
        ),
        LOGS,
    )
    earlier = bench.logs(
        source("i2"), event("rl.run.summary", 1, {"best": 3.0}, T0 - 1)
    )
    later = bench.logs(source("i2"), event("rl.run.summary", 2, {"best": 4.0}, T0 + 10))

    assert late == [Summary("s:i1:1", "trainer", {"trainer/a": 1}, T0 + 9)]
    assert earlier == []
    assert later == [Summary("s:i2:2", "trainer", {"trainer/best": 4.0}, T0 + 10)]


def test_a_summary_is_bounded_and_its_secrets_are_redacted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(summaries, "_MAX_KEYS", 2)
    bench = Bench()

    given = {"api_key": "0123456789abcdef", "list": [1], "none": None, "b": 1, "c": 2}
    first = bench.logs(source(), event("rl.run.summary", 1, given))
    known = bench.logs(source(), event("rl.run.summary", 2, {"b": 2}))

    assert [record.values for record in first] == [
        {"trainer/api_key": "[redacted]", "trainer/b": 1}
    ]
    assert [record.values for record in known] == [{"trainer/b": 2}]
    assert bench.counts() == {"summary/value": 2, "summary/too_many_keys": 1}


def test_an_alert_is_a_record_once_bounded_and_without_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "_MAX_ALERTS", 2)
    bench = Bench()
    secret = "key sk-ant-api03-" + "a" * 80
    at_the_edge = "a" * 250 + " " + secret

    first = bench.logs(
        source(),
        event(
            "rl.alert",
            1,
            secret,
            rl_alert_title="kl",
            rl_alert_level="error",
            rl_step=7,
        ),
    )
    again = bench.logs(
        source(),
        event(
            "rl.alert",
            1,
            secret,
            rl_alert_title="kl",
            rl_alert_level="error",
            rl_step=7,
        ),
    )
    other = bench.logs(
        source(),
        event(
            "rl.alert",
            2,
            "",
            T0 + 1,
            rl_alert_title=at_the_edge,
            rl_alert_level="odd",
            rl_role="judge",
        ),
    )
    nameless = bench.logs(source(), event("rl.alert", 3, "x"))
    many = bench.logs(source(), event("rl.alert", 4, "x", rl_alert_title="more"))

    assert first == [Alert("a:i1:1", "trainer", "kl", "key [redacted]", "error", 7, T0)]
    assert (again, nameless, many) == ([], [], [])
    assert other == [
        Alert("a:i1:2", "judge", "a" * 250 + " key [", "", "warn", None, T0 + 1)
    ]
    assert bench.counts() == {"alert/title": 1, "alert/too_many": 1}


@pytest.mark.parametrize(
    ("word", "level"),
    [("CRITICAL", "error"), ("Warning", "warn"), ("debug", "info"), ("", "warn")],
)
def test_an_alert_of_any_producer_is_read_in_the_words_that_programs_use(
    word: str, level: str
) -> None:
    alert = event("rl.alert", 1, "", rl_alert_title="kl", rl_alert_level=word)

    [record] = Bench().logs(source(), alert)

    assert isinstance(record, Alert)
    assert record.level == level


def test_a_config_that_changes_nothing_or_comes_again_makes_no_record() -> None:
    bench = Bench()
    bench.logs(source(), event("rl.run.config", 1, {"lr": 1.0, "opt": {"betas": {}}}))

    again = bench.logs(source(), event("rl.run.config", 1, {"lr": 1.0}))
    same = bench.logs(source("i2"), event("rl.run.config", 1, {"lr": 1.0, "opt": {}}))

    assert (again, same) == ([], [])
    assert bench.translator.redelivered() == 1


def test_a_leaf_replaces_a_map_and_a_map_a_leaf() -> None:
    bench = Bench()

    for seq, config in enumerate(({"a": {"b": 1}}, {"a": 2}, {"a": {"c": 3}}), start=1):
        bench.logs(source(), event("rl.run.config", seq, config, T0 + seq))

    assert [r.config for r in bench.records if isinstance(r, Config)] == [
        {"a": {"b": 1}},
        {"a": 2},
        {"a": {"c": 3}},
    ]


def test_what_processes_dropped_is_summed_over_them_from_counts_that_only_grow() -> (
    None
):
    bench = Bench()

    bench.logs(source("i1"), event("rl.dropped", 2, {"disk_full": 5, "value": 1}))
    bench.logs(source("i1"), event("rl.dropped", 1, {"disk_full": 3}))
    bench.logs(source("i2"), event("rl.dropped", 1, {"disk_full": 2}))
    bench.logs(source("i1"), event("rl.dropped", 2, {"disk_full": 5, "value": 1}))

    assert bench.counts() == {"disk_full": 7, "value": 1}


def test_an_event_may_be_named_by_an_attribute_and_foreign_ones_are_known_by_their_content() -> (
    None
):
    record = event("", None, {"lr": 1.0}, event_name="rl.run.config")
    attributes = {key: value for key, value in who().items() if key != "rl.instance.id"}
    bench = Bench()

    first = bench.request(logs_request((attributes, [record])), LOGS)
    again = bench.request(logs_request((attributes, [record])), LOGS)

    assert [(type(r), r.config) for r in first if isinstance(r, Config)] == [
        (Config, {"lr": 1.0})
    ]
    assert again == []


def test_other_log_records_are_passed_over() -> None:
    bench = Bench()

    assert (
        bench.logs(source(), event("app.started", 1, {"a": 1}), event("", None, "text"))
        == []
    )
    assert bench.counts() == {}
