"""Tests of `Run.annotate` at emission: which shapes are read, what leaves, and what is counted."""

from __future__ import annotations

import math
import struct
import warnings
from pathlib import Path

import numpy as np
import pytest

from otel_bridge import Rollout
from otel_bridge.emit.rollouts.live import LiveRollout
from otel_bridge.emit.tokens.annotate import annotate
from otel_bridge.emit.tokens.turns import annotate_turns
from otel_bridge.records import trace_id_of
from otel_bridge.tokens.statistics import figures_of
from otel_bridge.translation.decode.attributes import int_in, mapping_of, text_in
from otel_bridge.translation.tokens.token_span import TokenSpan, read_token_span
from support.trainers.emit_rollout_doubles import (
    MemoryRun,
    log_generations,
    log_rollouts,
)
from support.trainers.emit_samples import run_in

ENGINE = [-0.5, -1.0, -0.25]
TRAINER = [-0.75, -0.5, -1.25]


def spans(run: MemoryRun) -> list[TokenSpan]:
    read = [
        read_token_span(span, mapping_of(span.attributes))
        for span in run.spans
        if span.name == "rl.tokens"
    ]
    return [span for span in read if span is not None]


def steps_and_roles(run: MemoryRun) -> list[tuple[int | None, str]]:
    """Step of each span, and its role if it is not the run's."""
    attributes = [
        mapping_of(span.attributes) for span in run.spans if span.name == "rl.tokens"
    ]
    return [(int_in(each, "rl.step"), text_in(each, "rl.role")) for each in attributes]


def streams(span: TokenSpan) -> dict[str, dict[str, bytes]]:
    """Each stream by name: its numbers by rollout."""
    by_name: dict[str, dict[str, bytes]] = {}
    for trace_id, rows in span.streams.items():
        for name, data in rows.items():
            by_name.setdefault(name, {})[trace_id] = data
    return by_name


def figures(span: TokenSpan) -> dict[str, tuple[list[float], list[float]]]:
    """Counts and sums of each figure."""
    return {
        name: tuple(figure.rollouts[:2].tolist())
        for name, figure in span.figures.items()
    }


@pytest.mark.parametrize(
    ("rollouts", "given"),
    [
        ("a", np.array(TRAINER, "f4")),
        (Rollout(id="a"), TRAINER),
        (["a"], [TRAINER]),
        (["a"], np.array([TRAINER])),
        ({"id": "a"}, tuple(TRAINER)),
        ("a", list(map(np.asarray, TRAINER))),
    ],
    ids=["array", "list", "lists", "matrix", "tuple", "numbers without dimensions"],
)
def test_values_of_one_rollout_may_be_an_array_or_a_list_alone_or_in_a_list(
    rollouts: object, given: object
) -> None:
    run = MemoryRun()

    annotate(run, rollouts, {"logprobs": ENGINE, "trainer_logprobs": given}, step=7)

    (span,) = spans(run)
    assert steps_and_roles(run) == [(7, "")]
    assert span.rollouts == [trace_id_of(run.id, "a")]
    delta = np.array(TRAINER) - np.array(ENGINE)
    assert figures(span) == {
        "logprob/engine": ([3.0], [pytest.approx(-1.75)]),
        "logprob/trainer": ([3.0], [pytest.approx(-2.5)]),
        "mismatch/k1": ([3.0], [pytest.approx(-delta.sum())]),
        "mismatch/k3": ([3.0], [pytest.approx((np.exp(delta) - 1 - delta).sum())]),
        "mismatch/mean": ([3.0], [pytest.approx(abs(delta).sum())]),
        "mismatch/beyond": ([3.0], [1.0]),
    }
    assert span.figures["mismatch/mean"].rollouts[2] == [pytest.approx(1.0)]
    assert not run.drops


def test_a_batch_is_parallel_lists_or_a_mapping_of_lists_and_a_rollout_may_lack_a_stream() -> (
    None
):
    run = MemoryRun()

    annotate(
        run,
        {"ids": ["a", "b"], "entropies": [[1.0, None], None]},
        {"is_masked": [[True, False], [True]]},
    )

    (span,) = spans(run)
    assert figures(span) == {
        "entropy": ([1.0, 0.0], [1.0, 0.0]),
        "masked": ([2.0, 1.0], [1.0, 1.0]),
    }
    assert steps_and_roles(run) == [(8, "")]
    assert not run.drops


def test_tokens_that_were_not_sampled_are_in_no_sum() -> None:
    run = MemoryRun()

    annotate(
        run,
        ["a"],
        {"entropies": [[1.0, math.nan, 3.0]], "loss_mask": [[1, 0, 1]]},
    )

    (span,) = spans(run)
    assert figures(span) == {"entropy": ([2.0], [4.0])}
    assert not run.drops


def test_a_token_without_a_number_is_counted_beside_one_that_was_not_sampled() -> None:
    run = MemoryRun()

    annotate(
        run,
        ["a"],
        {"logprobs": [[math.nan, None, -1.0]], "loss_mask": [[1, 0, 1]]},
    )

    assert run.drops == {"token_not_finite": 1}


def test_a_stream_that_a_rollout_lacks_is_not_counted_beside_one_with_a_mask() -> None:
    run = MemoryRun()

    annotate(
        run,
        ["a", "b"],
        {"logprobs": [TRAINER, None], "loss_mask": [[1, 0, 1], [1, 1]]},
    )

    assert figures(spans(run)[0]) == {"logprob/engine": ([2.0, 0.0], [-2.0, 0.0])}
    assert not run.drops


class TensorThatNeedsAGradient:
    """Stands for a number of torch: numpy is refused, ``float()`` is not."""

    shape = ()

    def __init__(self, number: float) -> None:
        self.number = number

    def __array__(self, *arguments: object, **keywords: object) -> None:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")

    def __float__(self) -> float:
        return self.number


@pytest.mark.parametrize("in_a_list", [True, False])
def test_a_list_may_hold_numbers_of_torch_that_numpy_cannot_read(
    in_a_list: bool,
) -> None:
    run = MemoryRun()
    tensors = list(map(TensorThatNeedsAGradient, TRAINER))

    annotate(run, ["a"], {"logprobs": [tensors] if in_a_list else tensors})

    assert figures(spans(run)[0]) == {"logprob/engine": ([3.0], [-2.5])}
    assert not run.drops


def test_values_that_cannot_be_used_are_counted_and_named_and_the_rest_leaves() -> None:
    run = MemoryRun()
    streams: dict[str, object] = {
        "logprobs": [[-1.0, -math.inf], [-1.0]],
        "trainer_logprobs": np.array([[-1.5, -2.0], [math.nan, -1.0]]),
        "entropies": [[0.5, 0.5, 0.5], [0.25]],
        "texts": ["ab", [object()]],
    }

    annotate(run, ["a", "b"], {**streams, "loss_mask": [[1, 1], [1]]})

    (span,) = spans(run)
    assert figures(span)["mismatch/k1"] == ([1.0, 0.0], [0.5, 0.0])
    assert figures(span)["entropy"] == ([0.0, 1.0], [0.0, 0.25])
    assert run.drops == {
        "token_length": 2,
        "token_not_finite": 1,
        "token_unreadable": 2,
    }
    assert ("token_length", 1, "entropies of a") in run.keyed_drops
    assert ("token_not_finite", 1, "logprobs") in run.keyed_drops


@pytest.mark.parametrize(
    "values", [[math.inf, -math.inf, -1.0], [1e300, -1e300, 1e-300], [-1.0, math.nan]]
)
def test_values_beyond_32_bits_and_infinities_cost_nothing_where_numpy_raises_for_them(
    values: list[float],
) -> None:
    run = MemoryRun()
    streams = {"logprobs": values, "trainer_logprobs": values[::-1]}

    # As in a program that looks for the first NaN of its own.
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        annotate(run, "a", streams, step=7)

    (span,) = spans(run)
    counts = span.figures["logprob/engine"].rollouts[0]
    assert counts == [sum(map(math.isfinite, values))]


def test_what_names_no_rollout_is_counted() -> None:
    run = MemoryRun()

    annotate(
        run,
        [Rollout(), "a", "a"],
        {"entropies": [[1.0], [2.0], [3.0]]},
        step="first",
    )
    annotate(run, 3.5, {"entropies": [1.0]})
    annotate(run, "a", {})

    (span,) = spans(run)
    assert figures(span) == {"entropy": ([1.0], [2.0])}
    assert run.drops == {
        "token_rollout_id": 1,
        "token_twice": 1,
        "bad_step": 1,
        "token_no_rollouts": 1,
    }


def test_streams_leave_only_of_the_rollouts_that_this_process_recorded_whole() -> None:
    run = MemoryRun(MAX_ROLLOUTS_PER_STEP="2")
    ids = [f"kept-{index}" for index in range(6)]
    log_rollouts(run, [Rollout("q", id=name, step=1) for name in ids])
    kept = {span.trace_id.hex() for span in run.spans if span.name == "rollout"}

    annotate(
        run,
        ids,
        {"logprobs": [ENGINE] * 6, "trainer_logprobs": [TRAINER] * 6},
    )

    (span,) = spans(run)
    assert len(kept) == 2
    assert (
        set(streams(span)["logprobs"]) == set(streams(span)["trainer_logprobs"]) == kept
    )
    assert {
        struct.unpack("<3f", data) for data in streams(span)["logprobs"].values()
    } == {tuple(ENGINE)}


def test_log_probabilities_of_one_side_leave_of_all_rollouts_so_that_the_bridge_can_join_them() -> (
    None
):
    run = MemoryRun(MAX_ROLLOUTS_PER_STEP="1")
    ids = [f"joined-{index}" for index in range(4)]
    log_rollouts(run, [Rollout("q", id=name, step=1) for name in ids])

    annotate(
        run,
        ids,
        {"trainer_logprobs": [TRAINER] * 4, "entropies": [TRAINER] * 4},
    )

    (span,) = spans(run)
    assert len(streams(span)["trainer_logprobs"]) == 4
    assert len(streams(span)["entropies"]) == 1


def test_turns_of_rollouts_carry_their_tokens_and_those_of_a_tool_are_in_no_sum() -> (
    None
):
    run = MemoryRun()
    turns = [
        {"token_ids": [1, 2], "logprobs": [-1.0, -2.0]},
        {"token_ids": [3, 4], "logprobs": [0.0, -3.0], "loss_mask": [0, 1]},
    ]

    messages = [
        {"role": role, "content": "a"}
        for role in ("user", "assistant", "tool", "assistant")
    ]
    log_rollouts(run, [Rollout(messages, id="turns", turns=turns)], step=4)

    (span,) = spans(run)
    assert figures(span) == {"logprob/engine": ([3.0], [-6.0])}
    assert steps_and_roles(run) == [(4, "")]
    assert struct.unpack("<4f", streams(span)["token_ids"][span.rollouts[0]]) == (
        1,
        2,
        3,
        4,
    )
    assert not run.drops


def test_all_tokens_of_a_rollout_without_a_mask_count_beside_one_with_a_mask() -> None:
    run = MemoryRun()

    streams = {"logprobs": [[-1.0, -2.0], [-4.0]], "loss_mask": [[1, 0], None]}
    annotate(run, ["a", "b"], streams, step=7)

    (span,) = spans(run)
    assert figures(span) == {"logprob/engine": ([1.0, 1.0], [-1.0, -4.0])}


@pytest.mark.parametrize("kept", ["4", "0"])
def test_turns_of_a_live_rollout_carry_their_tokens_also_if_it_is_sampled_out(
    kept: str,
) -> None:
    run = MemoryRun(MAX_ROLLOUTS_PER_STEP=kept)

    with LiveRollout(run, {"id": "a", "step": 4}) as rollout:
        rollout.messages = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "!"},
        ]
        rollout.turns = [{"token_ids": [1, 2], "logprobs": [-1.0, -2.0]}]

    (span,) = spans(run)
    assert figures(span) == {"logprob/engine": ([2.0], [-3.0])}
    assert steps_and_roles(run) == [(4, "")]
    assert span.rollouts == [trace_id_of(run.id, "a")]
    assert not run.drops


def test_parallel_lists_may_have_log_probabilities_of_their_tokens() -> None:
    run = MemoryRun()

    log_generations(
        run,
        prompts=["q", "p"],
        response_token_ids=[[1, 2], [3]],
        logprobs=[[-1.0, -2.0], [-0.5]],
        ids=["g-0", "g-1"],
        step=4,
        decode=str,
    )

    (span,) = spans(run)
    assert figures(span) == {"logprob/engine": ([2.0, 1.0], [-3.0, -0.5])}
    assert span.texts[span.rollouts[0]] == ["[1]", "[2]"]
    assert not run.drops


def test_a_large_call_is_several_spans() -> None:
    run = MemoryRun()

    annotate(run, list("abc"), {"entropies": np.ones((3, 1 << 19), "f4")})

    assert [len(span.rollouts) for span in spans(run)] == [2, 1]


@pytest.mark.parametrize(
    ("mode", "leaves"), [("full", True), ("off", False), ("truncate:5", False)]
)
def test_texts_and_ids_of_tokens_are_under_the_content_policy(
    mode: str, leaves: bool
) -> None:
    run = MemoryRun(MESSAGE_CONTENT=mode)
    texts = {4: "the ", 5: "answer"}

    annotate(run, "a", {"token_ids": [4, 5]}, decode=lambda ids: texts[ids[0]])

    (span,) = spans(run)
    assert ("token_ids" in streams(span)) is leaves
    assert span.texts == (
        {}
        if mode == "off"
        else {span.rollouts[0]: ["the ", "answer"] if leaves else ["the "]}
    )


def test_each_token_id_of_a_call_is_decoded_once() -> None:
    run = MemoryRun()
    decoded: list[list[int]] = []

    def decode(token_ids: list[int]) -> str:
        decoded.append(token_ids)
        return f"<{token_ids[0]}>"

    annotate(
        run,
        ["decoded-1", "decoded-2"],
        {"token_ids": [[1, 2, 1], [3, 1]]},
        decode=decode,
    )

    (span,) = spans(run)
    assert [span.texts[trace_id] for trace_id in span.rollouts] == [
        ["<1>", "<2>", "<1>"],
        ["<3>", "<1>"],
    ]
    assert sorted(decoded) == [[1], [2], [3]]


def test_a_turn_without_ids_does_not_keep_the_log_probabilities_from_leaving() -> None:
    run = MemoryRun()
    turns = [{"token_ids": [1], "logprobs": [-1.0]}, {"logprobs": [-2.0]}]

    annotate_turns(run, [("without-ids", turns)], step=4, decode=str)

    (span,) = spans(run)
    assert figures(span) == {"logprob/engine": ([2.0], [-3.0])}
    assert span.texts == {}
    assert not run.drops


def test_a_secret_in_several_tokens_keeps_all_of_their_texts_from_leaving() -> None:
    run = MemoryRun()
    secret = ["the key is ", "sk-", "abcdefghij", "klmnopqrstuvwxyz0123456789"]

    annotate(run, "a", {"token_ids": [1, 2, 3, 4], "tokens": secret})

    (span,) = spans(run)
    assert span.texts == {}
    assert "token_ids" not in streams(span)
    assert run.drops == {"token_text": 1}


def test_lists_give_the_same_figures_as_arrays() -> None:
    values = {
        "logprobs": [-0.5, -1.0, math.nan, -3.0],
        "trainer_logprobs": [-0.25, -1.5, -1.0, -0.001],
    }
    sums = []

    for convert in (list, np.array):
        run = MemoryRun()
        rows = {name: [convert(row)] for name, row in values.items()}
        annotate(run, ["a"], rows)
        figures = spans(run)[0].figures
        sums.append(
            {
                name: [
                    figure.rollouts.tolist(),
                    figure.tenths.tolist(),
                    figure.buckets.tolist(),
                ]
                for name, figure in figures.items()
            }
        )

    assert sums[0] == sums[1]
    assert sums[0]["mismatch/mean"][0][0] == [3]


@pytest.mark.parametrize("lengths", [[25, 0, 0], [0, 25], [0, 0, 25, 0], [11, 0, 14]])
def test_each_token_counts_where_rollouts_without_tokens_are_first_or_last(
    lengths: list[int],
) -> None:
    values = np.arange(-25.0, 0.0)

    figure = figures_of({"entropies": values}, lengths)["entropy"]

    counts, sums = figure.rollouts
    assert (counts.tolist(), sums.sum()) == (lengths, values.sum())
    assert figure.tenths[0].sum() == 25


def test_nothing_raises_and_all_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Odd:
        def __iter__(self) -> object:
            raise KeyError

        def __len__(self) -> int:
            raise OSError

    with run_in(tmp_path) as run:
        run.annotate(Odd(), entropies=[1.0])
        run.annotate(["a"], entropies=Odd(), tokens=3)
        run.annotate("a", token_ids=[1], decode=5)  # type: ignore[arg-type]
        run.finish(timeout_s=0)
        run.annotate("a", entropies=[1.0])

    printed = capsys.readouterr().err
    assert "records that otel-bridge failed on" in printed
    assert "values of tokens that are not numbers" in printed
