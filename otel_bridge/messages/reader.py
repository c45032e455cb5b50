"""Messages in the shape of any library -> messages with a role and fields. Imports no library.

They are objects of a program, or JSON that a producer sent. The shapes are in ``shapes.py``. What is
in no shape is returned as it is, for the caller to keep it as text or to count it.
"""

from __future__ import annotations

from collections import UserString
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeAlias, cast

from otel_bridge.errors import any_error_but_signals
from otel_bridge.messages import shapes
from otel_bridge.messages.fields import (
    fields_of,
    first,
    parsed,
    plain,
    text_or_none,
)
from otel_bridge.values.mappings import present, without
from otel_bridge.values.reading import ReadBudget, items_of

_MAX_NESTING = 8
"""Levels of containers and wrappers that are opened; a conversation that holds itself ends there."""
_MAX_LOOKED_AT = 1_000
"""Most entries of nested containers that are read to tell what they are."""
ReadItems: TypeAlias = Callable[[Sequence[object], object], Sequence[object]]
"""Callable with a container's entries and the container; returns those that may be read."""


class Message(NamedTuple):
    """Holds one message as its library gives it.

    Attributes:
        role: Role, by the names of GenAI; empty when the message names none.
        fields: Its fields; ``None`` when *value* has no known shape.
        value: What the program gave, where it has no fields.
        wrappers: Facts beside the message in what holds it (usage, model), from inside outwards; of
            several messages in one wrapper the first has them.
    """

    role: str
    fields: Mapping[str, Any] | None
    value: object = None
    wrappers: tuple[Mapping[str, Any], ...] = ()

    def unwrapped(self) -> Message:
        """Return the message with the facts of its wrappers among its fields.

        A name that it has itself, or that means something else in a message, follows ``wrapper.``.
        """
        fields = self.fields
        if fields is None:
            return self
        for facts in self.wrappers:
            fields = _with_facts(fields, facts)
        return self._replace(fields=fields, wrappers=())


def messages_of(value: object, role: str = "user") -> list[object]:
    """Return the entries in a text, one message, JSON text of messages, or any sequence of them.

    Texts become messages of *role*. Other entries are not read yet, and may hold several messages
    each. Empty for ``None``; a sequence that raises is one entry, which `encode` then counts as
    ``rollout_message``. What a generator raises is raised: its rollout or span is lost.
    """
    if value is None:
        return []
    whole = (
        value.data if isinstance(value, UserString) else value
    )  # a sequence of its characters
    if isinstance(whole, str):
        return _of_text(whole, role)
    entries = _entries_in(whole)
    if not any(isinstance(entry, str) for entry in entries):
        return entries
    messages: list[object] = []
    for entry in entries:
        # A text in a sequence may be JSON of a message too: a column of them is a list of texts.
        messages += (
            _of_text(str.__str__(entry), role) if isinstance(entry, str) else [entry]
        )
    return messages


def _entries_in(value: object) -> list[object]:
    """Return the entries of a sequence.

    *value* alone if it is a message itself, bytes, or raises when it is read. What a generator
    raises is raised: the messages that it gave before cannot be read again.
    """
    if isinstance(value, Iterator):
        return list(cast("Iterator[object]", value))
    try:
        if (
            isinstance(value, bytes)
            or fields_of(value) is not None
            or _pair(value) is not None
        ):
            return [value]
        sequence = plain(value)
        if isinstance(sequence, Iterable):
            return list(cast("Iterable[object]", sequence))
        return [value]
    except any_error_but_signals():  # code of the user's own object
        return [value]


def _of_text(text: str, role: str) -> list[object]:
    """Return the messages whose JSON *text* is, else the text as one message of *role*.

    Each entry must be a message for certain: a prompt may be JSON too.
    """
    data = parsed(text)
    if holds_none(data):
        return []
    if data is not text:
        entries = cast("list[object]", data if isinstance(data, list) else [data])
        if entries and all(map(is_message, entries)):
            return entries
    return [{"role": role, "content": text}]


def holds_none(value: object) -> bool:
    """Return whether *value* is a conversation without a message, as ``{"messages": []}``, and nothing else.

    Other empty lists, and those beside other fields, may be an answer in JSON.
    """
    if not isinstance(value, dict):
        return False
    fields = cast("dict[object, object]", value)
    return len(fields) == 1 and any(
        plain(fields.get(key)) == [] for key in shapes.CONVERSATIONS
    )


def is_message(entry: object) -> bool:
    """Return whether *entry* certainly is a message.

    It says its role and has content or parts, or it is an item of one part. What reading it raises is raised.
    """
    if _pair(entry) is not None:
        return True
    if fields_of(entry) is None:
        return False
    return any(map(_is_certain, read(entry, _few())))


def _is_certain(message: Message) -> bool:
    """Return whether a message names a role and has content, or is an item of one part.

    With less it may be data of any kind: a prompt in JSON, a row of a table.
    """
    if message.fields is None or not (
        message.role in shapes.CHAT_ROLES or "role" in message.fields
    ):
        return False
    kind = first(message.fields, shapes.KIND_KEYS)
    return (
        _has_content(message.fields)
        or shapes.PARTS_KEY in message.fields
        or is_item(kind)
    )


def is_item(kind: object) -> bool:
    """Return whether *kind* is the type of a message of one part, as in OpenAI's Responses API."""
    return isinstance(kind, str) and shapes.KINDS.get(kind) in shapes.ITEM_ROLES


def first_role(entry: object) -> str:
    """Return the role of the first message in *entry*; empty without one.

    What reading it raises is raised.
    """
    return next((message.role for message in read(entry, _few())), "")


def _few() -> ReadItems:
    """Return a callable that gives few entries of all containers together, and counts nothing."""
    budget = ReadBudget(_MAX_LOOKED_AT)
    return lambda entries, whole: items_of(entries, budget.share(whole, len(entries)))


def read(entry: object, items: ReadItems, depth: int = 0) -> Iterator[Message]:
    """Yield the messages in *entry*, which is one of `messages_of`.

    What it cannot read has no fields, and is yielded to be kept as text. Nothing for ``None`` and
    empty sequences. What the code of an object raises is raised.

    Args:
        entry: The entry.
        items: Bounds what is read of nested containers.
        depth: Number of containers around *entry*.
    """
    fields = _pair(entry) or fields_of(entry)
    if fields is not None:
        yield from _of_fields(fields, entry, depth, items)
        return
    entries = plain(entry)
    is_nested = isinstance(entries, Sequence) and not isinstance(entries, (str, bytes))
    if is_nested and entries and depth < _MAX_NESTING:
        for inner in items(cast("Sequence[object]", entries), entry):
            yield from read(inner, items, depth + 1)
    elif isinstance(entry, str):
        yield Message("", {"content": entry})
    elif entry is not None and not (is_nested and not entries):
        yield Message("", None, entry)


def _pair(entry: object) -> Mapping[str, Any] | None:
    """Return LangChain's ``("human", "text")`` as fields; ``None`` for anything else.

    The first text must be a known role: other tuples of two texts are two messages.
    """
    # A list of two texts is two messages: LangChain's pairs are tuples.
    if type(entry) is not tuple or len(cast("tuple[object, ...]", entry)) != 2:
        return None
    role, content = cast("tuple[object, object]", entry)
    if (
        not isinstance(role, str)
        or shapes.ROLES.get(role, role) not in shapes.CHAT_ROLES
    ):
        return None
    return {"role": role, "content": content}


def _of_fields(
    fields: Mapping[str, Any], value: object, depth: int, items: ReadItems
) -> Iterator[Message]:
    """Yield the message that *fields* are, or the messages that they hold.

    Nothing for empty ones.
    """
    if shapes.AUTHOR_KEY in fields:
        fields = _with_author(fields)
    role = first(fields, shapes.ROLE_KEYS)
    kind = first(fields, shapes.KIND_KEYS)
    keys: tuple[str, ...] = ()
    if depth < _MAX_NESTING and not is_item(kind):
        keys = _keys_inside(fields, role)
    if keys:
        inner = [read(_typed(fields[key], kind), items, depth + 1) for key in keys]
        yield from _with_wrapper(chain.from_iterable(inner), fields, *keys)
        return
    role_name = _role_name(role, kind, fields)
    parts = plain(fields.get(shapes.PARTS_KEY))
    if isinstance(parts, (list, tuple)):
        yield from _by_role(role_name, cast("Sequence[object]", parts), fields)
    elif role_name or _has_content(fields):
        yield Message(role_name, fields)
    elif (prompt_key := _prompt_key(fields)) is not None:
        message = Message("", {"content": fields[prompt_key]})
        yield from _with_wrapper(iter([message]), fields, prompt_key)
    elif fields and not holds_none(fields):
        yield Message("", None, value)


def is_exchange(fields: Mapping[str, Any]) -> bool:
    """Return whether *fields* hold a list of messages that were sent, and one of those that came back.

    Two texts may be data of any kind.
    """
    for key in shapes.EXCHANGE:
        messages = plain(fields.get(key))
        if not isinstance(messages, (list, tuple)) or not messages:
            return False
    return True


def _with_author(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return *fields* with role and name of their author, if this has a role that they do not name."""
    author = fields_of(fields[shapes.AUTHOR_KEY])
    if author is None or author.get("role") is None or "role" in fields:
        return fields
    merged = {**fields, "role": author["role"], "name": author.get("name")}
    merged[shapes.AUTHOR_KEY] = without(author, ("role", "name")) or None
    return merged


def _prompt_key(fields: Mapping[str, Any]) -> str | None:
    """Return the key of a bare text that is a message; ``None`` without one."""
    for key in shapes.PROMPT_KEYS:
        if isinstance(fields.get(key), str):
            return key
    return None


def _system_of(request: Mapping[str, Any]) -> Message | None:
    """Return the message of the system that stands beside the messages of a request.

    ``None`` without one.
    """
    settings = fields_of(request.get(shapes.SETTINGS_KEY)) or {}
    system = first(request, shapes.SYSTEM_KEYS)
    if system is None:
        system = first(settings, shapes.SYSTEM_KEYS)
    if isinstance(system, (str, list)):
        return Message("system", {"content": system}) if system else None
    fields = fields_of(system) or {}
    if shapes.PARTS_KEY not in fields:
        return None
    return Message("system", without(fields, shapes.ROLE_KEYS))


def _typed(inner: object, kind: object) -> object:
    """Return the content of a wrapper (LangChain's ``messages_to_dict``), with the type that says its role.

    Unchanged when *kind* says no role, or the content has no fields.
    """
    if not isinstance(kind, str) or kind not in shapes.TYPE_ROLES:
        return inner
    inner_fields = fields_of(inner)
    if inner_fields is None:
        return inner
    return {"type": kind, **inner_fields}


def _role_name(role: object, kind: object, fields: Mapping[str, Any]) -> str:
    """Return the role of a message by the names of GenAI: as given, by its type, or by its calls.

    Else empty, by which the caller knows that nothing says so. A role may be an enum, as in
    Cohere's client.
    """
    if role is None and isinstance(kind, str):
        role = shapes.ITEM_ROLES.get(
            shapes.KINDS.get(kind, "")
        ) or shapes.TYPE_ROLES.get(kind)
    if role is None and first(fields, shapes.CALL_KEYS) is not None:
        role = "assistant"
    name = str(getattr(role, "value", role) or "")
    return shapes.ROLES.get(name, name)


def _keys_inside(fields: Mapping[str, Any], role: object) -> tuple[str, ...]:
    """Return the keys of what a container or wrapper holds.

    Empty when *fields* are a message themselves.
    """
    # A message that names its role is not a wrapper, whatever else it holds.
    if role is not None and shapes.ANSWERS_KEY not in fields:
        return ()
    if is_exchange(fields):
        return shapes.EXCHANGE
    key = _key_inside(fields)
    return () if key is None else (key,)


def _key_inside(fields: Mapping[str, Any]) -> str | None:
    """Return the key of what a container or wrapper holds.

    ``None`` when *fields* are a message themselves, or nothing known. ``content`` wraps only what
    has a role or parts: content with a text inside is the content of a message.
    """
    for key in shapes.CONTAINERS:
        entries = plain(fields.get(key))
        if isinstance(entries, (list, tuple)) and entries:
            return key
    for key in shapes.WRAPPERS:
        inner = fields.get(key)
        wrapped = None if isinstance(inner, str) else fields_of(inner)
        is_wrapped = wrapped is not None and (
            first(wrapped, (*shapes.ROLE_KEYS, shapes.PARTS_KEY)) is not None
            or (key != "content" and _has_content(wrapped))
        )
        if is_wrapped:
            return key
    return None


def _with_wrapper(
    messages: Iterator[Message], wrapper: Mapping[str, Any], *keys: str
) -> Iterator[Message]:
    """Yield *messages*, the first that has fields with what the wrapper has beside *keys*.

    The system's text beside the messages of a request is a message before them.

    Without a message that has fields the facts are yielded alone, and are kept as text.
    """
    if keys[0] in shapes.REQUESTS and (system := _system_of(wrapper)) is not None:
        yield system
        wrapper = without(wrapper, shapes.SYSTEM_KEYS)
    read_keys = {*keys, *shapes.KIND_KEYS, *shapes.ROLE_KEYS}
    facts = present(without(wrapper, read_keys))
    reason = _reason_of_response(wrapper)
    if reason is not None:
        facts["finish_reason"] = reason
    for message in messages:
        if facts and message.fields is not None:
            yield message._replace(wrappers=(*message.wrappers, facts))
            facts = {}
        else:
            yield message
    if facts:
        yield Message("", None, facts)


def _reason_of_response(wrapper: Mapping[str, Any]) -> str | None:
    """Return why a response of OpenAI's Responses API ended, ``None`` for any other wrapper.

    A status alone says nothing: messages, items and jobs have one too.
    """
    kind_key, kind = shapes.RESPONSE
    if wrapper.get(kind_key) != kind:
        return None
    details = fields_of(wrapper.get(shapes.INCOMPLETE_KEY)) or {}
    return text_or_none(details.get("reason") or wrapper.get("status"))


def _with_facts(
    fields: Mapping[str, Any], facts: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return *fields* with *facts* beside them, each under a name that means nothing in a message."""
    merged = dict(fields)
    content = first(fields, shapes.CONTENT_KEYS)
    for name, fact in facts.items():
        # LangChain's generation repeats the text of its message.
        if isinstance(fact, str) and isinstance(content, str) and fact == content:
            continue
        key = name
        while key in merged or key in shapes.MESSAGE_KEYS:
            key = f"wrapper.{key}"
        merged[key] = fact
    return merged


def _has_content(fields: Mapping[str, Any]) -> bool:
    # An array of several calls has no truth value.
    return first(fields, (*shapes.CONTENT_KEYS, *shapes.CALL_KEYS)) is not None


def _by_role(
    role: str, parts: Sequence[object], fields: Mapping[str, Any]
) -> Iterator[Message]:
    """Yield one message for each run of parts of one role.

    Pydantic-ai's request holds those of several. A message without parts is yielded as well: its
    fields are facts.
    """
    instructions = fields.get(shapes.INSTRUCTIONS_KEY)
    if isinstance(instructions, str):
        yield Message("system", {"content": instructions})
    run: list[object] = []
    run_role = role
    for part in parts:
        part_fields = fields_of(part)
        kind = None if part_fields is None else part_fields.get("part_kind")
        if isinstance(kind, str):
            part_role = shapes.PART_ROLES.get(kind, role)
        else:
            part_role = role
        if run and part_role != run_role:
            yield Message(run_role, {**fields, shapes.PARTS_KEY: run})
            run = []
        run_role = part_role
        run.append(part)
    yield Message(run_role, {**fields, shapes.PARTS_KEY: run})
