"""The contract: config, end, reopening, closing, and the exporter itself."""

# ruff: noqa: D102  # the name of a test says what it tests
from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from otel_bridge.exporter import (
    Exporter,
    ExporterSettings,
    RunInfo,
    WritesAlerts,
    WritesSummary,
    degraded_of,
    found_of,
    left_out_of,
    tracker_run_id_of,
)
from otel_bridge.records import Json, Record, Scalar, Status
from otel_bridge.testing import samples
from otel_bridge.testing.contents import Contents, flat_configs, scalar_text
from otel_bridge.testing.contract.compare import same, same_scalars, written
from otel_bridge.testing.contract.fixtures import ContractFixtures, Open, ReadBack
from otel_bridge.testing.delivery import deliver


class LifeContract(ContractFixtures):
    """Tests that a run is opened, configured, ended, opened again and left."""

    def test_the_config_of_each_role_is_shown_once_also_when_it_grows_and_comes_again(
        self, opened: Open, run: RunInfo, read_back: ReadBack
    ) -> None:
        if not self.keeps_config:
            pytest.skip("the tracker keeps no config")
        trainer: dict[str, Json] = {
            "lr": 0.001,
            "actor": {"layers": 2, "name": "tiny"},
            "seed": 7,
        }
        configs: dict[str | None, Mapping[str, Json]] = {
            "trainer": trainer,
            "explorer": {"temperature": 0.7},
            None: {"launcher": "local"},
        }
        grown = {**configs, "trainer": {**trainer, "clip": 0.2}}

        writer = opened(configs=configs)
        writer.write_config("trainer", grown["trainer"])
        written(writer, samples.placed([samples.row(1)]))
        # A new writer gets the whole config again: it must add nothing to what is there.
        written(opened(configs=grown), [])

        same(read_back(run).config, flat_configs(grown.items()), "config")

    def test_the_last_value_of_a_summary_is_shown_also_when_rows_have_its_key_or_it_comes_again(
        self, opened: Open, run: RunInfo, read_back: ReadBack
    ) -> None:
        rows = samples.placed(
            [samples.row(n, {"loss": float(n), "acc": n / 10}) for n in range(1, 5)]
        )
        summaries: dict[str | None, Mapping[str, Scalar]] = {
            "trainer": {"trainer/loss": 0.25, "trainer/best": "step 2"}
        }
        writer = opened(summaries=summaries)
        if not isinstance(writer, WritesSummary):
            writer.close()
            pytest.skip("the writer shows no summary")

        deliver(writer, rows[:2])
        writer.write_summary(
            "trainer",
            {"trainer/acc": 0.75, "trainer/steps": 10, "trainer/nan": float("nan")},
        )
        writer.write_summary(
            "trainer",
            {"trainer/best": "step 3", "trainer/steps": 20, "trainer/ok": True},
        )
        # Rows behind the summary: W&B makes the last row's values the summary's.
        deliver(writer, rows[2:])
        writer.end(Status.FINISHED)
        writer.close()

        expected: dict[str, Scalar] = {
            "trainer/loss": 0.25, "trainer/acc": 0.75, "trainer/steps": 20, "trainer/best": "step 3",
            "trainer/ok": True, "trainer/nan": float("nan"),
        }  # fmt: skip
        _same_summary(read_back(run), expected)
        # Another value than the last writer gave: the one of the opening is newer.
        expected["trainer/best"] = "step 4"
        second = opened(
            summaries={"trainer": expected},
            reopened=True,
            # As the bridge does: W&B forgets the axes of keys that are not named again.
            keys=dict.fromkeys(rows[0].values, "trainer/step"),
        )
        written(second, rows)
        contents = read_back(run)
        _same_summary(contents, expected)
        same_scalars(contents, rows)

    def test_an_alert_is_raised_once_also_when_it_comes_again(
        self, opened: Open, run: RunInfo, read_back: ReadBack
    ) -> None:
        unplaced: list[Record] = [
            samples.row(1),
            samples.alert(2, "kl too large", "warn"),
            samples.alert(3, "nan", "error"),
            samples.row(4),
        ]
        records = samples.placed(unplaced)
        first = opened()
        if not isinstance(first, WritesAlerts) or not self.keeps_alerts:
            first.close()
            pytest.skip("the tracker shows no alerts")

        deliver(first, records[:3])
        first.close()
        second = opened()
        deliver(second, records, held=second.durable())
        second.end(Status.FINISHED)
        second.close()

        same(
            sorted(read_back(run).alerts),
            [("kl too large", "warn"), ("nan", "error")],
            "alerts",
        )

    def test_a_writer_names_the_same_run_again_and_finds_nothing_of_others(
        self, opened: Open
    ) -> None:
        first = opened()
        url = first.url
        run_id = tracker_run_id_of(first)
        same(url is None or bool(url), True, "url is text or nothing")
        same(found_of(first), "", "found in an empty tracker")
        written(first, samples.placed([samples.row(1)]))

        second = opened()

        same(tracker_run_id_of(second), run_id, "tracker_run_id")
        same(found_of(second), "", "found by a writer that goes on")
        second.close()

    def test_a_config_of_odd_keys_and_values_raises_no_error(
        self, opened: Open, run: RunInfo, read_back: ReadBack
    ) -> None:
        odd: dict[str, Json] = {
            **samples.odd_key_values(),
            "long": "x" * 20_000, "none": None, "list": [1, [2, {"a": None}]], "empty": {}, "": 1, "nan": float("nan"),
            # MLflow takes at most 100 params in one request, each of at most 6,000 characters.
            **{f"many_{n}": n for n in range(300)},
        }  # fmt: skip
        records = samples.placed([samples.row(1)])

        written(opened(configs={"trainer": odd}), records)

        same_scalars(read_back(run), records)

    @pytest.mark.parametrize("status", list(Status))
    def test_the_end_is_shown_and_may_come_again(
        self, opened: Open, run: RunInfo, read_back: ReadBack, status: Status
    ) -> None:
        records = samples.placed([samples.row(1)])
        writer = opened()

        deliver(writer, records)
        writer.end(status)
        writer.end(status)
        writer.close()

        contents = read_back(run)
        same(contents.status, status if self.keeps_status else None, "status")
        same_scalars(contents, records)

    def test_a_run_that_ended_is_opened_again_and_goes_on(
        self, opened: Open, run: RunInfo, read_back: ReadBack
    ) -> None:
        records = samples.placed(samples.rows(6))
        configs: dict[str | None, Mapping[str, Json]] = {"trainer": {"lr": 0.1}}

        first = opened(configs=configs)
        deliver(first, records[:3])
        first.end(Status.FAILED)
        first.close()
        second = opened(configs=configs, reopened=True)
        deliver(second, records, held=second.durable())
        second.close()
        # Read while the run is open, because the third writer ends it again.
        reopened = read_back(run)
        third = opened(configs=configs, reopened=True)
        third.end(Status.FINISHED)
        third.close()
        ended = read_back(run)

        same_scalars(reopened, records)
        same_scalars(ended, records)
        if self.leaves_open(third):
            same(reopened.status, None, "status after reopening")
        if self.keeps_status:
            same(ended.status, Status.FINISHED, "status after the end")
        if self.keeps_config:
            same(ended.config, {"trainer/lr": "0.1"}, "config")

    def test_a_writer_closed_without_an_end_leaves_the_run_open(
        self, opened: Open, run: RunInfo, read_back: ReadBack
    ) -> None:
        records = samples.placed(samples.rows(4))

        written(opened(), records[:2])
        writer = opened()
        deliver(writer, records, held=writer.durable())
        writer.close()
        writer.close()

        contents = read_back(run)
        same_scalars(contents, records)
        if self.leaves_open(writer):
            same(contents.status, None, "status")

    def test_durable_never_goes_back_nor_beyond_what_was_written(
        self, opened: Open
    ) -> None:
        records = samples.placed(samples.rows(6))
        writer = opened()

        answers = [writer.durable()]
        for record in records:
            writer.write_rows([record])
            answers.append(writer.durable())
        writer.close()

        if answers[0] is None:
            same(
                answers, [None] * len(answers), "durable() of a writer that cannot tell"
            )
        else:
            positions = [position for position in answers if position is not None]
            same(
                (positions, max(positions) <= 6), (sorted(positions), True), "durable()"
            )

    def test_an_ability_that_the_tracker_lacks_is_named_by_the_writer_and_by_the_probe(
        self, exporter: Exporter, settings: ExporterSettings, opened: Open
    ) -> None:
        writer = opened()
        deliver(writer, samples.job())
        degraded = degraded_of(writer)
        left_out = left_out_of(writer)
        writer.close()

        for sentence in degraded:
            same(
                sentence.strip() != "" and "\n" not in sentence,
                True,
                f"degraded is one line for each ability: {degraded}",
            )
        same(
            bool(degraded) or not left_out,
            True,
            f"left out with no ability missing: {left_out}",
        )
        same(
            all(count > 0 for count in left_out.values()),
            True,
            f"counts of what was left out: {left_out}",
        )
        if exporter.probe is not None:
            same(
                tuple(exporter.probe(settings)),
                degraded,
                "what the probe finds, and the writer",
            )

    def test_the_exporter_and_its_settings_import_no_tracker(
        self, exporter: Exporter, environment: Mapping[str, str], tmp_path: Path
    ) -> None:
        if not self.target or not exporter.requires:
            pytest.skip("needs the exporter's `target` and `requires`")
        code = (
            "import os, sys, pathlib; from otel_bridge.testing.child import load_target\n"
            f"load_target({self.target!r}).read_settings(dict(os.environ), pathlib.Path.cwd())\n"
            f"print([name for name in {exporter.requires!r} if name in sys.modules])"
        )

        # In a new process, because this one has imported the tracker to read it back.
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **environment},
            cwd=tmp_path,
            capture_output=True,
            check=True,
        )

        same(done.stdout.decode().strip(), "[]", "trackers imported")

    def test_the_destination_is_text_and_the_same_each_time(
        self,
        exporter: Exporter,
        environment: Mapping[str, str],
        settings: ExporterSettings,
        run: RunInfo,
        tmp_path: Path,
    ) -> None:
        second_settings = exporter.read_settings(environment, tmp_path)

        same(
            dict(second_settings.destination), dict(settings.destination), "destination"
        )
        for name, value in settings.destination.items():
            same((type(name), type(value)), (str, str), f"types of {name!r}: text")
        same(
            settings.view(run),
            second_settings.view(run),
            "view() is the same each time; empty while the address is unknown",
        )


def _same_summary(contents: Contents, expected: Mapping[str, Scalar]) -> None:
    """Compare the entries of *expected* alone: a tracker may add its own."""
    for key, value in expected.items():
        same(contents.summary.get(key), scalar_text(value), f"summary of {key}")
