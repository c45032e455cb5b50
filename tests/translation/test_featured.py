"""The dozen keys that a person watches: a first section in trackers, and curves in `status --watch`."""

from __future__ import annotations

from otel_bridge.records import Row
from otel_bridge.translation.featured import FEATURED
from otel_bridge.translation.options import TranslationOptions
from support.otlp.otlp_samples import RUN, Bench, row, source

TRAINER = source("i1", "trainer")


def values_of(bench: Bench) -> list[dict[str, object]]:
    return [dict(record.values) for record in bench.records if isinstance(record, Row)]


def test_rows_show_featured_keys_once_more_in_the_order_of_the_setting() -> None:
    bench = Bench(TranslationOptions(run_id=RUN, featured=("reward/mean", "loss")))

    bench.metrics(
        TRAINER,
        row(1, {"loss": 1.0, "lr": 0.5, "reward/mean": 2.0}),
        row(2, {"loss": 3.0}),
    )

    assert values_of(bench) == [
        {
            "trainer/loss": 1.0, "trainer/lr": 0.5, "trainer/reward/mean": 2.0,
            "0_featured/02 trainer loss": 1.0, "0_featured/01 trainer reward mean": 2.0,
        },
        {"trainer/loss": 3.0, "0_featured/02 trainer loss": 3.0},
    ]  # fmt: skip


def test_without_the_setting_rows_stay_as_they_are_and_the_usual_keys_have_curves() -> (
    None
):
    bench = Bench()

    bench.metrics(
        TRAINER,
        *(row(number, {"loss": float(number), "lr": 0.5}) for number in range(1, 51)),
    )
    bench.restart()
    bench.metrics(TRAINER, row(51, {"loss": float("nan")}), row(52, {"loss": 52.0}))
    bench.translator.flush()

    assert all(
        set(values) <= {"trainer/loss", "trainer/lr"} for values in values_of(bench)
    )
    assert bench.state.get(FEATURED) == {
        "trainer/loss": [*map(float, range(12, 51)), 52.0]
    }


def test_curves_keep_the_order_of_the_setting_after_a_restart_and_end_with_it() -> None:
    bench = Bench(TranslationOptions(run_id=RUN, featured=("loss", "kl", "lr")))
    bench.metrics(TRAINER, row(1, {"kl": 1.0, "loss": 2.0, "lr": 0.5}))
    bench.translator.flush()

    bench.options = TranslationOptions(run_id=RUN, featured=("lr", "kl"))
    bench.restart()
    bench.metrics(TRAINER, row(2, {"kl": 2.0}))
    bench.translator.flush()

    curves = bench.state.get(FEATURED)
    assert isinstance(curves, dict)
    assert list(curves.items()) == [("trainer/lr", [0.5]), ("trainer/kl", [1.0, 2.0])]


def test_there_are_at_most_twelve_curves() -> None:
    bench = Bench()

    bench.metrics(TRAINER, row(1, {f"{number}/loss": 1.0 for number in range(20)}))
    bench.translator.flush()

    curves = bench.state.get(FEATURED)
    assert isinstance(curves, dict)
    assert len(curves) == 12
