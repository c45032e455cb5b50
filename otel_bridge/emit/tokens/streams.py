"""Per-token values of a rollout, as a program has them -> numbers of one length, and the texts that may leave.

Numpy arrays are not copied.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import Any, TypeVar, cast

import numpy

from otel_bridge.emit.conversations.conversation import MessageLimits
from otel_bridge.emit.emit_run import EmitRun
from otel_bridge.emit.rollouts.columns import TokenDecoder
from otel_bridge.errors import any_error_but_signals
from otel_bridge.messages.content_filter import ContentFilter
from otel_bridge.tokens.statistics import LOSS_MASK, REFERENCES, TOKEN_IDS, Numbers

TOKENS = "tokens"
"""Stream of the texts of the tokens."""
UNREADABLE = "token_unreadable"
OTHER_LENGTH = "token_length"
_NUMBER_KINDS = "fiub"
"""Kinds of numpy types that are numbers: float, int, unsigned, bool."""

Entry = TypeVar("Entry", bound=Sized)
CountDrop = Callable[[str, int, str], None]


@dataclass(slots=True)
class TokenRollout:
    """Holds the values of the tokens of one rollout.

    Attributes:
        streams: Numbers by name of the stream, one for each token, NaN for a token without one.
        none_counts: Number of tokens by stream that have ``None`` instead of a number.
        length: Number of tokens.
        raw_texts: Texts of the tokens, as the call has them; ``None``: it has none.
        texts: Texts that may leave; ``None``: none.
        sent: Names of the streams that leave whole.
    """

    trace_id: bytes
    streams: dict[str, Numbers] = field(default_factory=dict[str, Numbers])
    none_counts: dict[str, int] = field(default_factory=dict[str, int])
    length: int = 0
    raw_texts: object = None
    texts: Sequence[str] | None = None
    sent: Sequence[str] = ()

    def __len__(self) -> int:
        return self.length

    def left_out(self, name: str) -> int:
        """Return the number of sampled tokens to which the program itself gives no value in a stream.

        These are all of them if the rollout lacks the stream. A ``None`` counts as that of a token
        that was not sampled, as long as there are such tokens.
        """
        missing = self.none_counts[name] if name in self.streams else self.length
        mask = self.streams.get(LOSS_MASK)
        if mask is None:
            return missing
        sampled = int((mask > 0).sum())
        return max(missing - (self.length - sampled), 0)


def first_within(entries: Sequence[Entry], limit: int) -> Sequence[Entry]:
    """Return the first entries that together have at most *limit* tokens or characters, perhaps none."""
    ends = list(accumulate(map(len, entries)))
    return entries[: bisect_right(ends, limit)]


def rows_of(stream: object, rollouts: int) -> list[object]:
    """Return the values of *stream* by rollout; they may be of more or fewer than *rollouts*.

    A call may give the stream of one rollout alone or in a list.

    Raises:
        TypeError: It cannot be iterated; also what the program's own objects raise.
    """
    # One copy to the CPU instead of one a rollout.
    rows: Any = _on_cpu(stream)
    if type(rows) is not numpy.ndarray:
        rows = list(rows)
    first = next(iter(rows), None)
    # A list of numbers or texts is the stream itself of one rollout, also if there is one of them.
    # A number may be an array or tensor without dimensions.
    is_number_or_text = isinstance(first, str) or getattr(first, "shape", None) == ()
    is_nested = hasattr(first, "__len__") and not is_number_or_text
    if rollouts == 1 and not is_nested:
        return [rows]
    return list(rows)


def _on_cpu(values: Any) -> Any:
    """Return a torch tensor as a numpy array of 32-bit floats, anything else as it is.

    Numpy lacks some types of torch, such as bfloat16, and refuses tensors of a GPU or with a
    gradient. Torch is not imported: its tensors are known by ``detach``.
    """
    if hasattr(values, "detach"):
        return values.detach().float().cpu().numpy()
    return values


def read_rollout(
    trace_id: bytes, name: str, rows: dict[str, object], count_drop: CountDrop
) -> TokenRollout:
    """Return the rollout *name* with those of its streams that can be used, perhaps none.

    A stream that cannot be read is counted as ``token_unreadable``. One of another length than
    `_length_of` is counted as ``token_length``: it is unknown to which tokens its values belong.

    Args:
        trace_id: Trace of the rollout.
        name: Names the rollout in counts.
        rows: Values by stream; the texts are removed.
        count_drop: Counts a stream that is left out.
    """
    rollout = TokenRollout(trace_id, raw_texts=rows.pop(TOKENS, None))
    for stream, row in rows.items():
        if row is None:
            continue
        try:
            numbers, none_count = _numbers(row)
        except any_error_but_signals():  # whatever the program put there
            count_drop(UNREADABLE, 1, stream)
            continue
        rollout.streams[stream] = numbers
        rollout.none_counts[stream] = none_count
    sizes = {stream: len(numbers) for stream, numbers in rollout.streams.items()}
    rollout.length = _length_of(sizes)
    for stream, size in sizes.items():
        if size != rollout.length:
            count_drop(OTHER_LENGTH, 1, f"{stream} of {name}")
            del rollout.streams[stream]
    return rollout


def _numbers(row: object) -> tuple[Numbers, int]:
    """Return the values of one rollout, NaN for ``None``, and how many are ``None``.

    Raises:
        TypeError: They are not numbers; also what the program's own objects raise.
    """
    array = _on_cpu(row)
    if isinstance(array, numpy.ndarray):
        numbers = cast("Any", array)
        # Numpy itself would read texts as numbers.
        if numbers.dtype.kind not in _NUMBER_KINDS:
            raise TypeError(numbers.dtype)
        # In doubles only where they are doubles already.
        is_double = numbers.dtype.kind == "f" and numbers.dtype.itemsize > 4
        return numbers.reshape(-1).astype("f8" if is_double else "f4", copy=False), 0
    values = list(cast("Iterable[Any]", array))
    # One by one: numpy refuses tensors of a GPU, with a gradient or of bfloat16 in a list too.
    floats = [math.nan if value is None else float(value) for value in values]
    return numpy.array(floats), values.count(None)


def _length_of(sizes: Mapping[str, int]) -> int:
    """Return the length that the ids of the tokens have, else their mask, else most streams.

    0 without any. Ids and mask are first, because they say which tokens there are; a trainer that
    recomputed something may have padded or cut it.
    """
    for name in REFERENCES:
        if name in sizes:
            return sizes[name]
    lengths = list(sizes.values())
    return max(lengths, key=lengths.count, default=0)


# --- texts of tokens --------------------------------------------------------------------------------
def add_texts(run: EmitRun, rollouts: Sequence[TokenRollout], decode: Any) -> None:
    """Add to *rollouts* the texts that may leave, and remove ids of tokens whose texts may not.

    A rollout gets no text without texts and decoder, or without an id for each token. Texts that
    are more or fewer than its tokens are counted as ``token_length``, texts that hold what is
    redacted as ``token_text``. Then its ids go too, since anybody with the tokenizer can read them.

    Args:
        run: Its content policy applies; it counts what is left out.
        rollouts: Those whose texts are wanted.
        decode: The program's function from token ids to text, or ``None``.

    Raises:
        Exception: What the program's own objects raise; a failure of *decode* is counted instead.
    """
    limits = run.rollout_options.limits
    decoder = TokenDecoder(decode, run.count_drop)

    @cache  # most tokens of a call are not the first of their kind
    def text_of(token_id: float) -> str:
        return decoder.text([int(token_id)])

    for rollout in rollouts:
        ids = rollout.streams.get(TOKEN_IDS)
        if rollout.raw_texts is not None:
            texts = list(map(str, cast("Iterable[object]", rollout.raw_texts)))
        # A turn may lack ids, and then it has no text either.
        elif decode is None or ids is None or numpy.isnan(ids).any():
            continue
        else:
            texts = [text_of(token_id) for token_id in ids.tolist()]
        if len(texts) != rollout.length:
            run.count_drop(OTHER_LENGTH, 1, TOKENS)
        else:
            rollout.texts = _allowed(texts, limits)
            if rollout.texts is None:
                run.count_drop("token_text")
        if rollout.texts is None:
            rollout.streams.pop(TOKEN_IDS, None)


def _allowed(texts: list[str], limits: MessageLimits) -> Sequence[str] | None:
    """Return the first *texts* within the limit of characters; ``None`` if they hold what is redacted.

    A secret may lie in several tokens. So the whole text is redacted, and no token leaves if that
    changes it: a text with a part replaced could not be cut into its tokens again.
    """
    within: Sequence[str] = texts
    if limits.policy.limit is not None:
        within = first_within(texts, limits.policy.limit)
    whole = "".join(within)
    if ContentFilter(limits.policy, limits.rollout_bytes).text(whole) == whole:
        return within
    return None
