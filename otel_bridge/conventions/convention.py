"""The shape of a convention's tables. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

GENERATION: Final = "generation"
TOOL: Final = "tool"
SPAN: Final = "span"

_Kinds = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """Attribute names of one convention, in order of preference where several say the same.

    A name may end in ``#field``: the attribute is then a JSON object, and that field of it is meant.

    Attributes:
        title: Its name, for the documentation.
        scopes: What the names of its instrumentation scopes begin with.
        switch: Setting that makes its instrumentations record content; empty: they always do.
        names: Attributes whose texts are names, ids and enumerations, never what a model read or wrote.
        content: Attributes that hold what a model read or wrote, or a description of it.
        content_prefixes: What the names of such attributes begin with.
        kinds: Attribute that names the kind of a span, to what its values mean here, in lower case.
        rollouts: Values of those attributes, in lower case, that make the trace of their span a rollout.
        flat: Prefixes of messages that are spread over attributes: those of the input, those of the output.
        inputs: Attributes with the input of a span, messages or not.
        outputs: Attributes with its output.
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
    content: frozenset[str] = frozenset()
    content_prefixes: tuple[str, ...] = ()
    kinds: _Kinds = field(default_factory=dict[str, Mapping[str, str]])
    rollouts: frozenset[str] = frozenset()
    flat: tuple[tuple[str, str], ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    input_tokens: tuple[str, ...] = ()
    output_tokens: tuple[str, ...] = ()
    finish_reasons: tuple[str, ...] = ()
