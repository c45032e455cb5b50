"""Names of streams of tokens, and of the figures that are made of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from otel_bridge.values.mappings import without

T = TypeVar("T")
ENGINE = "logprobs"
TRAINER = "trainer_logprobs"
TOKEN_IDS = "token_ids"  # noqa: S105  # tokens of a model
LOSS_MASK = "loss_mask"
REFERENCES = (TOKEN_IDS, LOSS_MASK)
"""Streams that say which tokens there are, and have no figure."""
FIGURES: Mapping[str, str] = {
    ENGINE: "logprob/engine",
    TRAINER: "logprob/trainer",
    "entropies": "entropy",
    "advantages": "advantage",
    "is_masked": "masked",
    "is_clipped": "clipped",
}
"""Stream to the name of its figure; any other stream has the figure of its own name."""
ABSOLUTE = "mismatch/mean"
MISMATCH = ("mismatch/k1", "mismatch/k3", ABSOLUTE, "mismatch/beyond")


def figure_of_stream(name: str) -> str:
    """Return the name of the figure of a stream."""
    return FIGURES.get(name, name)


def streams_of_figures(streams: Mapping[str, T]) -> dict[str, T]:
    """Return the streams that have a figure, by name."""
    return without(streams, REFERENCES)
