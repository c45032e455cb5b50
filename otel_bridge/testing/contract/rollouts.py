"""The contract: rollouts and evaluations."""

# ruff: noqa: D102  # the name of a test says what it tests
from __future__ import annotations

import dataclasses
import math

import pytest

from otel_bridge.exporter import RunInfo
from otel_bridge.records import Json, Record
from otel_bridge.testing import samples
from otel_bridge.testing.contract.compare import same, written
from otel_bridge.testing.contract.fixtures import ContractFixtures, Open, ReadBack
from otel_bridge.testing.delivery import deliver


class RolloutContract(ContractFixtures):
    """Tests that rollouts arrive once, also those that lack something, and that evaluations find theirs."""

    def test_every_rollout_arrives_once_with_reward_messages_and_spans(
        self, opened: Open, run: RunInfo, read_back: ReadBack
    ) -> None:
        if not self.keeps_rollouts:
            pytest.skip("the tracker keeps no rollouts")
        # More than the 50 that MLflow's writer puts into one request.
        records = samples.placed(
            [samples.rollout(n, step=1 + n // 8, seed=run.id) for n in range(70)]
        )

        written(opened(), records)

        self.same_rollouts(read_back(run), records)

    def test_rollouts_that_lack_something_arrive_too(
        self, opened: Open, run: RunInfo, read_back: ReadBack
    ) -> None:
        if not self.keeps_rollouts:
            pytest.skip("the tracker keeps no rollouts")
        whole = samples.rollout(6, seed=run.id)
        # NUL, which PostgreSQL refuses; a lone surrogate, which UTF-8 does not have; a long text.
        odd_text: list[dict[str, Json]] = [
            {"role": "user", "content": "\x00 \ud800 🚀 " + "x" * 100_000}
        ]
        # Characters that MLflow refuses in names, and a text beyond the 8,000 of its tags.
        odd_metadata: dict[str, Json] = {"a/b@c": {"d": [1, None]}, "e": "f" * 9000}
        records = samples.placed([
            samples.rollout(0, reward=None, rewards={}, seed=run.id),
            samples.rollout(2, error="tool timed out", seed=run.id),
            samples.rollout(3, reward=math.nan, rewards={"a@b": math.inf, "": 0.5}, seed=run.id),
            dataclasses.replace(samples.rollout(4, seed=run.id), messages=(), role=None, key="rollouts", axis="step"),
            dataclasses.replace(samples.rollout(5, seed=run.id), step=None, axis=None, steps={}, group=None),
            dataclasses.replace(whole, incomplete=True, spans=whole.spans[1:], clipped_bytes=9),
            dataclasses.replace(samples.rollout(7, seed=run.id), messages=odd_text, metadata=odd_metadata),
        ])  # fmt: skip

        written(opened(), records)

        same(
            {rollout.id for rollout in read_back(run).rollouts},
            {record.id for record in records},
            "rollouts",
        )

    def test_an_evaluation_is_attached_once_and_one_without_its_rollout_is_not_a_loss_of_others(
        self, opened: Open, run: RunInfo, read_back: ReadBack
    ) -> None:
        rollout = samples.rollout(0, seed=run.id)
        # Of a rollout that this tracker never got, e.g. one that a user has deleted there.
        other_client = samples.rollout(99, seed=run.id)
        values = [
            samples.evaluation(other_client),
            samples.evaluation(rollout, 0.5),
            samples.evaluation(rollout, 1.0, name="reward"),
            samples.evaluation(rollout, None, name="verdict", label="good"),
        ]
        unplaced: list[Record] = [rollout, *values]
        records = samples.placed(unplaced)

        writer = opened()
        refused = deliver(writer, records)
        # A writer that shows what it holds is never given its records again.
        refused_again = (
            deliver(writer, records[1:]) if writer.durable() is None else refused
        )
        writer.close()

        same(
            (set(refused) | set(refused_again)) <= {2},
            True,
            f"records refused, of which only 2 may be: {refused} {refused_again}",
        )
        if self.keeps_evaluations:
            evaluations = sorted(
                values
                for values in read_back(run).evaluations
                if values[0] == rollout.id
            )
            same(
                evaluations,
                [(rollout.id, "judge", 0.5), (rollout.id, "reward", 1.0)],
                "evaluations",
            )
