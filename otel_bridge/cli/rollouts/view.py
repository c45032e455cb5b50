"""Prints one rollout as text: a heading, then its messages by role with tool calls and results.

On a terminal, long messages are clipped, with a note of how many lines are left out. In a pipe
every line is printed. Control characters are escaped, because a model's text must not control the
terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import orjson
from rich.console import Console
from rich.text import Text

from otel_bridge.cli.rollouts.source import Payload, entries
from otel_bridge.journal.report import Report
from otel_bridge.records import Json
from otel_bridge.text.counts import counted
from otel_bridge.text.message_parts import part_text
from otel_bridge.text.printable import printable
from otel_bridge.translation.tokens.step import PREFIX as TOKENS

_ROLES = {
    "system": "magenta",
    "user": "cyan",
    "assistant": "green",
    "tool": "yellow",
    "developer": "magenta",
}
_LINES = 12
"""Lines of one message on a terminal."""
_INDENT = "    "


class RolloutView:
    """Prints rollouts on *console*; with *full* nothing is clipped."""

    def __init__(self, console: Console, *, full: bool = False) -> None:
        self._console = console
        # A pipe or a file gets all: a program may search it.
        self._clips = console.is_terminal and not full

    def run(self, run_id: str, report: Report | None) -> None:
        """Print the heading of the run whose rollouts follow."""
        name = (
            f"{report.project}/{report.name} ({run_id})"
            if report is not None and report.name
            else run_id
        )
        self._console.print(Text(_one_line(name), style="bold"))

    def rollout(self, payload: Payload) -> None:
        """Print one rollout."""
        self._console.print()
        self._console.print(_heading(payload))
        for line in _remarks(payload):
            self._console.print(line)
        messages = entries(payload.get("messages"))
        # A tool's message has the id of its call; the function's name is with the call.
        names = {
            str(call.get("id")): _function(call)[0]
            for message in messages
            for call in entries(message.get("tool_calls"))
        }
        for message in messages:
            self._message(message, names)
        if not messages:
            self._console.print(
                Text(
                    "  no messages: none were sent, or their content is switched off",
                    style="dim",
                )
            )

    def _message(self, message: Payload, names: Mapping[str, str]) -> None:
        role = str(message.get("role") or "message")
        tool = str(
            message.get("name") or names.get(str(message.get("tool_call_id"))) or ""
        )
        self._console.print(
            Text(_one_line(f"  {role} {tool}".rstrip()), style=_ROLES.get(role, "bold"))
        )
        lines = [line for text in _texts(message) for line in _shown(text).split("\n")]
        for line in self._clipped(lines):
            self._console.print(line)

    def _clipped(self, lines: list[str]) -> Iterator[Text]:
        """Yield lines folded to the terminal's width, then a note of how many are left out."""
        if not self._clips:
            yield from (Text(_INDENT + line) for line in lines)
            return
        # At least 20, or a narrow terminal would fold at every few characters.
        width = max(self._console.width - len(_INDENT), 20)
        folded = [
            line[start : start + width]
            for line in lines
            for start in range(0, max(len(line), 1), width)
        ]
        yield from (Text(_INDENT + line) for line in folded[:_LINES])
        if len(folded) > _LINES:
            yield Text(
                f"{_INDENT}… {len(folded) - _LINES} more lines; --full or --json shows all",
                style="dim",
            )


def _shown(text: str) -> str:
    """Return *text* escaped for a terminal; line breaks stay, and a tab becomes spaces."""
    return printable(text.expandtabs(4), lines=True)


def _one_line(text: str) -> str:
    """Return *text* escaped for a terminal, line breaks too: a name must not forge a line."""
    return printable(text.expandtabs(4))


def _heading(payload: Payload) -> Text:
    heading = Text()
    for number, (text, style) in enumerate(_facts(payload)):
        heading.append(" · " if number else "", style="dim")
        heading.append(_one_line(text), style=style)
    return heading


def _facts(payload: Payload) -> Iterator[tuple[str, str]]:
    """Yield each fact of a rollout's heading, with its style."""
    yield str(payload.get("key") or "rollouts"), "bold"
    yield from (
        (f"{name} {payload[key]}", "") for name, key in _NAMES if _is_set(payload, key)
    )
    reward = _reward(payload)
    if reward:
        yield reward, "bold"
    if payload.get("advantage") is not None:
        yield f"advantage {_number(payload['advantage'])}", ""
    yield from (
        (f"{name} {payload[key]}", "")
        for name, key in _END_NAMES
        if _is_set(payload, key)
    )
    yield from ((text, "") for text in (_duration(payload), _counts(payload)) if text)
    yield f"trace {payload['id']}", "dim"


_NAMES = (
    ("step", "step"), ("split", "split"), ("group", "group"), ("sample", "sample"), ("id", "rollout_id"),
)  # fmt: skip
_END_NAMES = (("finish", "finish_reason"), ("policy", "policy_version"))


def _is_set(payload: Payload, key: str) -> bool:
    return payload.get(key) not in {None, ""}


def _reward(payload: Payload) -> str:
    """Return the reward with its parts; empty when the rollout has neither."""
    parts = _listed(payload.get("rewards"), lambda name: not name.startswith(TOKENS))
    noted = f" ({parts})" if parts else ""
    if payload.get("reward") is not None:
        return f"reward {_number(payload['reward'])}{noted}"
    if parts:
        return f"rewards{noted}"
    return ""


def _token_figures(payload: Payload) -> str:
    """Return the figures over the tokens of a rollout; empty when its tokens were not annotated."""
    return _listed(payload.get("rewards"), lambda name: name.startswith(TOKENS))


def _listed(numbers: Json, takes: Callable[[str], bool]) -> str:
    """Return the *numbers* that *takes* selects by name; names lose the prefix of tokens."""
    if not isinstance(numbers, dict):
        return ""
    selected = {name: number for name, number in numbers.items() if takes(name)}
    return ", ".join(
        f"{name.removeprefix(TOKENS)} {_number(number)}"
        for name, number in selected.items()
    )


def _number(value: Json) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def _duration(payload: Payload) -> str:
    start = payload.get("start_unix_ns")
    end = payload.get("end_unix_ns")
    # A rollout that was logged without times has one nanosecond per span.
    if not isinstance(start, int) or not isinstance(end, int) or end - start < 1000:
        return ""
    return f"{(end - start) / 1e9:.3g} s"


def _counts(payload: Payload) -> str:
    counts = ((payload.get("turns"), "turn"), (payload.get("tool_calls"), "tool call"))
    return ", ".join(
        counted(count, name)
        for count, name in counts
        if isinstance(count, int) and count
    )


def _remarks(payload: Payload) -> Iterator[Text]:
    """Yield a line for each error and truncation, for the tokens, and for each evaluation."""
    if payload.get("error"):
        yield Text(_one_line(f"  error: {payload['error']}"), style="red")
    for span in entries(payload.get("spans")):
        # The error of the root is the rollout's own, which is shown above.
        if span.get("error") and span.get("parent_id") is not None:
            yield Text(
                _one_line(f"  {span.get('name')} failed: {span['error']}"), style="red"
            )
    if payload.get("incomplete"):
        yield Text("  incomplete: its root span never arrived", style="red")
    clipped = payload.get("clipped_bytes")
    if isinstance(clipped, int) and clipped:
        yield Text(
            f"  {clipped:,} bytes of its content were truncated before they arrived",
            style="yellow",
        )
    figures = _token_figures(payload)
    if figures:
        yield Text(_one_line(f"  tokens: {figures}"))
    for evaluation in entries(payload.get("evaluations")):
        # Figures of tokens have a line of their own.
        if not str(evaluation.get("name")).startswith(TOKENS):
            yield Text(_one_line(f"  later: {_evaluation(evaluation)}"), style="dim")


def _evaluation(evaluation: Payload) -> str:
    """Return the name of an evaluation with those of value, label and explanation that it has."""
    keys = ("value", "label", "explanation")
    parts = [str(evaluation[key]) for key in keys if evaluation.get(key) is not None]
    return f"{evaluation.get('name')} {' · '.join(parts)}"


def _texts(message: Payload) -> Iterator[str]:
    """Yield the texts of a message: reasoning, content, tool calls."""
    if message.get("reasoning_content"):
        yield f"(thinks) {message['reasoning_content']}"
    content = message.get("content")
    if isinstance(content, str):
        # An answer that only calls tools has an empty content, and needs no line.
        if content or not message.get("tool_calls"):
            yield content
    elif content is not None:
        yield from (
            part_text(part)
            for part in (content if isinstance(content, list) else [content])
        )
    for call in entries(message.get("tool_calls")):
        name, arguments = _function(call)
        yield f"→ {name}({arguments})"


def _function(call: Payload) -> tuple[str, str]:
    function = call.get("function")
    inner = function if isinstance(function, dict) else call
    arguments = inner.get("arguments")
    return str(inner.get("name") or "tool"), arguments if isinstance(
        arguments, str
    ) else _json(arguments)


def _json(value: Json) -> str:
    if value is None:
        return ""
    return orjson.dumps(value).decode()
