"""The conformance suite itself: the job is always the same, and a tracker that shows something else fails."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import pytest

from otel_bridge.records import Status
from otel_bridge.testing import (
    Contents,
    HeldDistribution,
    HeldRollout,
    HeldScalar,
    flat_configs,
)
from support.conformance.job import recorded_job
from support.conformance.truth import ExpectedRun, KeptKinds, Shown, compare

JOB = recorded_job(wide_keys=10)


def shown(truth: ExpectedRun) -> Shown:
    """What a tracker shows that takes everything as it is."""
    scalars = [
        HeldScalar(key, step, float(value))
        for key, step, value in truth.scalars.elements()
    ]
    scalars += [
        HeldScalar(key, step, float(value))
        for key, of in truth.odd.items()
        for step, value in of.elements()
    ]
    return Shown(
        Contents(
            scalars,
            [
                HeldDistribution(*place, low, high, count)
                for place, (count, low, high) in truth.distributions.items()
            ],
            [HeldRollout(id_, reward) for id_, reward in truth.rollouts.items()],
            list(truth.evaluations.elements()),
            flat_configs(truth.configs.items()),
            truth.status,
        ),
        truth.rows,
    )


def test_equal_arguments_give_equal_bytes() -> None:
    assert recorded_job(wide_keys=10) == JOB
    assert recorded_job("other", wide_keys=10).segments != JOB.segments


def test_a_tracker_that_takes_everything_as_it_is_passes() -> None:
    compare(shown(JOB.truth), JOB.truth, KeptKinds())


def _without(contents: Contents, name: str) -> Contents:
    return dataclasses.replace(contents, **{name: getattr(contents, name)[1:]})


def _twice(contents: Contents, name: str) -> Contents:
    listed = getattr(contents, name)
    return dataclasses.replace(contents, **{name: [*listed, listed[-1]]})


def _narrower(contents: Contents) -> Contents:
    first, *rest = contents.distributions
    return dataclasses.replace(
        contents,
        distributions=[dataclasses.replace(first, max=first.max - 0.25), *rest],
    )


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            lambda held: _without(held, "scalars"),
            "scalars: missing {('trainer/loss', 1, '1.0'): 1}",
        ),
        (lambda held: _twice(held, "scalars"), "series of odd keys"),
        (lambda held: _without(held, "distributions"), "distributions: missing"),
        (_narrower, "count, minimum and maximum of trainer/grad at step 4"),
        (lambda held: _without(held, "rollouts"), "rollouts: missing"),
        (lambda held: _twice(held, "evaluations"), "evaluations: missing {}, too much"),
        (lambda held: dataclasses.replace(held, config={}), "config: seen {}"),
        (lambda held: dataclasses.replace(held, status=Status.KILLED), "status: seen"),
    ],
)
def test_what_is_missing_doubled_or_changed_is_named(
    wrong: Callable[[Contents], Contents], said: str
) -> None:
    whole = shown(JOB.truth)

    with pytest.raises(AssertionError, match=re.escape(said)):
        compare(Shown(wrong(whole.contents), whole.rows), JOB.truth, KeptKinds())


def test_a_row_too_many_is_named() -> None:
    whole = shown(JOB.truth)

    with pytest.raises(AssertionError, match="number of rows"):
        compare(Shown(whole.contents, JOB.truth.rows + 1), JOB.truth, KeptKinds())


def test_what_a_tracker_does_not_keep_is_not_compared() -> None:
    whole: Any = shown(JOB.truth).contents
    plain = {key for key, _, _ in JOB.truth.scalars} - JOB.truth.unplaced
    few = Contents([scalar for scalar in whole.scalars if scalar.key in plain])

    compare(
        Shown(few),
        JOB.truth,
        KeptKinds(
            **dict.fromkeys(
                (field.name for field in dataclasses.fields(KeptKinds)), False
            )
        ),
    )


def test_the_second_attempt_is_shown_by_its_number() -> None:
    shown_of = {
        step: value
        for key, step, value in JOB.truth.scalars
        if key == "trainer/attempt"
    }

    assert shown_of == dict.fromkeys(range(4, 11), "2.0")
    assert (JOB.truth.configs["trainer"] or {}).get("attempt") == 2
