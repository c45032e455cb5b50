"""Type of a convention's tables. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

GENERATION = "generation"
TOOL = "tool"
SPAN = "span"

_Kinds = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """Holds the attribute names of one convention, in order of preference where several mean the same.

    A name may end in ``#field``: the attribute is then a JSON object, and the name means its field.

    Attributes:
        title: Name of the convention, for the documentation.
        scopes: Prefixes of the names of its instrumentation scopes.
        switch: Setting that makes its instrumentations record content; empty: they always record
            content.
        names: Attributes whose texts are names, ids and enumerations, never input or output of a
            model.
        span_words: Words in the names of its spans, beside the values of `names`.
        content: Attributes that hold input or output of a model, or a description of them.
        content_prefixes: Prefixes of the names of such attributes.
        kinds: Attribute that names the kind of a span, to the meaning of its values, which are in
            lower case.
        rollouts: Values of attributes in `kinds`, in lower case, that make the trace of their span
            a rollout.
        flat: Prefixes of messages that are spread over attributes: prefixes of the input, prefixes
            of the output.
        inputs: Attributes with the input of a span, messages or not.
        outputs: Attributes with the output of a span.
        calls: Attributes with a list of the tool calls of an answer, beside its text.
        reasoning: Attributes with the reasoning of an answer, beside its text.
        files: Attributes with a list of the files of an answer, beside its text.
        arguments: Attributes with the arguments of a tool.
        results: Attributes with the result of a tool.
        models: Attributes with the model's name.
        input_tokens: Attributes with the number of tokens read.
        output_tokens: Attributes with the number of tokens written.
        finish_reasons: Attributes with the finish reason, or a list of them.
    """

    title: str
    scopes: tuple[str, ...] = ()
    switch: str = ""
    names: frozenset[str] = frozenset()
    span_words: frozenset[str] = frozenset()
    content: frozenset[str] = frozenset()
    content_prefixes: tuple[str, ...] = ()
    kinds: _Kinds = field(default_factory=dict[str, Mapping[str, str]])
    rollouts: frozenset[str] = frozenset()
    flat: tuple[tuple[str, str], ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    reasoning: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    input_tokens: tuple[str, ...] = ()
    output_tokens: tuple[str, ...] = ()
    finish_reasons: tuple[str, ...] = ()
