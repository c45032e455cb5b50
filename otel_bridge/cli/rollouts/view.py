"""Prints one rollout as text: a heading, then its messages by role with tool calls and results.

On a terminal, long messages are clipped, with a note of how many lines are left out. In a pipe
every line is printed. Control characters are escaped, because a model's text must not control the
terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import orjson
from rich.console import Console
from rich.text import Text

from otel_bridge.cli.rollouts.source import Payload, entries
from otel_bridge.journal.report import Report
from otel_bridge.records import Json
from otel_bridge.text.counts import counted
from otel_bridge.text.message_parts import part_text
from otel_bridge.text.printable import printable
from otel_bridge.translation.generated_rollouts import TRAINED_STEP
from otel_bridge.translation.tokens.rollouts import PREFIX as TOKENS

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
        """Print one rollout: heading, remarks, messages.

        In place of missing messages a remark says why.
        """
        self._console.print()
        self._console.print(_heading(payload))
        for line, style in _remarks(payload):
            self._console.print(Text(_one_line(f"  {line}"), style=style))
        messages = entries(payload.get("messages"))
        # A tool's message has the id of its call; the function's name is with the call.
        names: dict[str, str] = {}
        for message in messages:
            for call in entries(message.get("tool_calls")):
                names[str(call.get("id"))] = _function(call)[0]
        for message in messages:
            self._message(message, names)

    def _message(self, message: Payload, names: Mapping[str, str]) -> None:
        """Print role and texts of a message.

        One of a tool that names itself nowhere has the name of its call.
        """
        role = str(message.get("role") or "message")
        tool = message.get("name") or names.get(str(message.get("tool_call_id"))) or ""
        heading = _one_line(f"  {role} {tool}".rstrip())
        self._console.print(Text(heading, style=_ROLES.get(role, "bold")))
        lines: list[str] = []
        for text in _texts(message):
            lines += printable(text.expandtabs(4), lines=True).split("\n")
        for line in self._clipped(lines):
            self._console.print(line)

    def _clipped(self, lines: Sequence[str]) -> Iterator[Text]:
        """Yield lines folded to the terminal's width, then a note of how many are left out.

        They are folded here, because the limit is of lines that a person sees. In a pipe all lines
        come as they are.
        """
        limit = len(lines)
        if self._clips:
            # At least 20, or a narrow terminal would fold at every few characters.
            width = max(self._console.width - len(_INDENT), 20)
            folded: list[str] = []
            for line in lines:
                starts = range(0, max(len(line), 1), width)
                folded += [line[start : start + width] for start in starts]
            lines = folded
            limit = _LINES
        for line in lines[:limit]:
            yield Text(_INDENT + line)
        if len(lines) > limit:
            note = f"… {len(lines) - limit} more lines; --full or --json shows all"
            yield Text(_INDENT + note, style="dim")


def _one_line(text: str) -> str:
    """Return *text* escaped for a terminal, line breaks too: a name must not forge a line."""
    return printable(text.expandtabs(4))


def _heading(payload: Payload) -> Text:
    """Return the facts of a rollout in one line."""
    heading = Text()
    for text, style in _facts(payload):
        heading.append(" · " if heading else "", style="dim")
        heading.append(_one_line(text), style=style)
    return heading


def _facts(payload: Payload) -> Iterator[tuple[str, str]]:
    """Yield each fact of a rollout that it has, with its style."""
    yield str(payload.get("key") or "rollouts"), "bold"
    yield from _named(payload, _NAMES)
    reward = payload.get("reward")
    parts = _figures(payload, of_tokens=False)
    if reward is not None or parts:
        total = "rewards" if reward is None else f"reward {_number(reward)}"
        yield f"{total} ({parts})" if parts else total, "bold"
    yield from _named(payload, _END_NAMES)
    trained_steps = payload.get("trained_steps")
    if isinstance(trained_steps, list) and trained_steps:
        yield f"{TRAINED_STEP} {', '.join(map(str, trained_steps))}", ""
    start = payload.get("start_unix_ns")
    end = payload.get("end_unix_ns")
    # A rollout that was logged without times has one nanosecond per span.
    if isinstance(start, int) and isinstance(end, int) and end - start >= 1000:
        yield f"{(end - start) / 1e9:.3g} s", ""
    if counts := _counts(payload):
        yield counts, ""
    yield f"trace {payload['id']}", "dim"


def _counts(payload: Payload) -> str:
    """Return the numbers of turns and tool calls of a rollout; empty when both are 0."""
    counts: list[str] = []
    for key, noun in (("turns", "turn"), ("tool_calls", "tool call")):
        count = payload.get(key)
        if isinstance(count, int) and count:
            counts.append(counted(count, noun))
    return ", ".join(counts)


_NAMES = {
    "step": "step", "split": "split", "group": "group", "sample": "sample", "rollout_id": "id",
}  # fmt: skip
_END_NAMES = {
    "advantage": "advantage",
    "finish_reason": "finish",
    "policy_version": "policy",
}


def _named(payload: Payload, names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield those of *names* that a rollout has, each after its name; nothing for an empty text."""
    for key, name in names.items():
        if payload.get(key) not in {None, ""}:
            yield f"{name} {_number(payload[key])}", ""


def _figures(payload: Payload, *, of_tokens: bool) -> str:
    """Return the parts of the reward, or the figures over the tokens; empty without any."""
    numbers = payload.get("rewards")
    figures: list[str] = []
    for name, number in numbers.items() if isinstance(numbers, dict) else ():
        # It is a value of the rollout in trackers, not a part of the reward.
        if name != TRAINED_STEP and name.startswith(TOKENS) == of_tokens:
            figures.append(f"{name.removeprefix(TOKENS)} {_number(number)}")
    return ", ".join(figures)


def _number(value: Json) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def _remarks(payload: Payload) -> Iterator[tuple[str, str]]:
    """Yield a line and its style for each error and truncation, for the tokens, and for each evaluation."""
    if payload.get("error"):
        yield f"error: {payload['error']}", "red"
    for span in entries(payload.get("spans")):
        # The error of the root is the rollout's own, which is shown above.
        if span.get("error") and span.get("parent_id") is not None:
            yield f"{span.get('name')} failed: {span['error']}", "red"
    if payload.get("incomplete"):
        yield "incomplete: its root span never arrived", "red"
    clipped = payload.get("clipped_bytes")
    if isinstance(clipped, int) and clipped:
        yield (
            f"{clipped:,} bytes of its content were truncated before they arrived",
            "yellow",
        )
    if figures := _figures(payload, of_tokens=True):
        yield f"tokens: {figures}", ""
    for evaluation in entries(payload.get("evaluations")):
        # Figures of tokens have a line of their own.
        if not str(evaluation.get("name")).startswith(TOKENS):
            yield f"later: {_evaluation(evaluation)}", "dim"
    if not payload.get("messages"):
        yield "no messages: none were sent, or their content is switched off", "dim"


def _evaluation(evaluation: Payload) -> str:
    """Return the name of an evaluation with those of value, label and explanation that it has."""
    keys = ("value", "label", "explanation")
    parts = [str(evaluation[key]) for key in keys if evaluation.get(key) is not None]
    return f"{evaluation.get('name')} {' · '.join(parts)}"


def _texts(message: Payload) -> Iterator[str]:
    """Yield the texts of a message: reasoning, content, tool calls; nothing for one without any."""
    if message.get("reasoning_content"):
        yield f"(thinks) {message['reasoning_content']}"
    content = message.get("content")
    # An answer that only calls tools may have an empty content, and needs no line.
    if content == "" and message.get("tool_calls"):
        content = None
    if content is not None:
        for part in content if isinstance(content, list) else [content]:
            yield part_text(part)
    for call in entries(message.get("tool_calls")):
        name, arguments = _function(call)
        yield f"→ {name}({arguments})"


def _function(call: Payload) -> tuple[str, str]:
    """Return name and arguments of a call, in OpenAI's form or flat, as some clients send it.

    A call without a name is ``tool``, one without arguments has none; other values are shown as
    JSON.
    """
    function = call.get("function")
    inner = function if isinstance(function, dict) else call
    arguments = inner.get("arguments")
    if arguments is None:
        arguments = ""
    elif not isinstance(arguments, str):
        arguments = orjson.dumps(arguments).decode()
    return str(inner.get("name") or "tool"), arguments
