"""Makes the page ``docs/semantic-conventions.md`` from the registry in ``semconv/``; ``make docs`` writes it.

The registry is in the format of OpenTelemetry's own (github.com/open-telemetry/weaver, ``schemas/semconv-syntax.md``).
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any, Final

import yaml

from otel_bridge import semconv

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "semantic-conventions.md"
_FOLDER: Final = ROOT / "semconv"
_CHAPTERS: Final = (
    (
        "entities",
        "Resource",
        "The resource names the run and the process. Every request has it.",
    ),
    (
        "metrics",
        "Metrics",
        "A row is what a training loop logs at one time. It holds values by key, at one step.",
    ),
    ("spans", "Spans", "One rollout is one trace."),
    ("events", "Events", "Everything else is an event, a log record with a name."),
    (
        "third_party",
        "Producers that do not know these conventions",
        "otel-bridge reads other names of these.",
    ),
)
_TEMPLATE: Final = re.compile(r"template\[(.*)\]")
_WIDTH: Final = 150


@dataclass(frozen=True, slots=True)
class Registry:
    """The groups of the registry, and the attributes that they refer to.

    Attributes:
        chapters: File name without its ending to its groups, definitions of attributes left out.
        attributes: Name to definition, OpenTelemetry's own included.
        own: Names that the registry itself defines.
    """

    chapters: Mapping[str, Sequence[Mapping[str, Any]]]
    attributes: Mapping[str, Mapping[str, Any]]
    own: frozenset[str]

    def groups(self) -> Iterator[Mapping[str, Any]]:
        """Yield all groups of all chapters."""
        for groups in self.chapters.values():
            yield from groups

    def names(self) -> set[str]:
        """Return every name of the registry: attributes, metrics, events, and spans up to the variable part."""
        found = set(self.own)
        for group in self.groups():
            found |= {one["ref"] for one in group.get("attributes", ())}
            found |= {group["name"]} if group["type"] == "event" else set()
            found |= {group["metric_name"]} if group["type"] == "metric" else set()
            found |= (
                {span_name(group).partition(" ")[0]}
                if group["type"] == "span"
                else set()
            )
        return found


def load(folder: Path = _FOLDER) -> Registry:
    """Read the registry and what it refers to of OpenTelemetry's."""
    files = {
        path.stem: _groups(path)
        for path in sorted(folder.glob("registry/*.yaml"))
        if path.stem != "manifest"
    }
    own = {one["id"]: one for groups in files.values() for one in _definitions(groups)}
    upstream = {
        one["id"]: one for one in _definitions(_groups(folder / "upstream.yaml"))
    }
    chapters = {
        name: [group for group in groups if not group["id"].startswith("registry.")]
        for name, groups in files.items()
    }
    return Registry(
        {name: groups for name, groups in chapters.items() if groups},
        upstream | own,
        frozenset(own),
    )


def _groups(path: Path) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = yaml.safe_load(path.read_text("utf-8"))["groups"]
    return groups


def _definitions(groups: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for group in groups:
        yield from (one for one in group.get("attributes", ()) if "id" in one)


def span_name(group: Mapping[str, Any]) -> str:
    """Return the name of a span, a fixed one or a pattern; empty for other groups."""
    name: str = group.get("annotations", {}).get("span_name", "")
    return name


def page(registry: Registry | None = None) -> str:
    """Return the page as it should be."""
    registry = registry or load()
    titles = {group["id"]: _title(group) for group in registry.groups()}
    parts = [
        Template(_file("head.md")).substitute(
            example=_file("example.sh"),
            row=_file("example.json").strip(),
            scope=semconv.SCOPE_NAME,
            run_header=semconv.HEADER_RUN_ID,
            server_header=semconv.HEADER_SERVER,
        )
    ]
    explained: set[str] = set()
    for chapter, title, about in _CHAPTERS:
        parts.append(f"## {title}\n\n{about}\n")
        parts += [
            _section(group, registry, titles, explained)
            for group in registry.chapters[chapter]
        ]
    return "\n".join([*parts, _file("foot.md")])


def _file(name: str) -> str:
    return (_FOLDER / name).read_text("utf-8")


def _title(group: Mapping[str, Any]) -> str:
    if group["type"] == "attribute_group":
        return str(group["display_name"])
    name = group.get("name") or group.get("metric_name") or span_name(group)
    return f"{str(group['type']).capitalize()} `{name}`"


def _section(
    group: Mapping[str, Any],
    registry: Registry,
    titles: Mapping[str, str],
    explained: set[str],
) -> str:
    """Return the section of *group*; notes of attributes in *explained* are on the page already."""
    lines = [f"### {titles[group['id']]}\n", _paragraph(group["brief"])]
    if group["type"] == "metric":
        lines.append(f"Instrument {group['instrument']}, unit `{group['unit']}`.\n")
    if group["type"] == "span":
        lines.append(f"Kind `{group['span_kind']}`.\n")
    if "note" in group:
        lines.append(_paragraph(group["note"]))
    if "extends" in group:
        title = titles[group["extends"]]
        own = ", and these:" if group.get("attributes") else "."
        lines.append(
            f"The {group['type']} has the attributes of [{title}](#{_anchor(title)}){own}\n"
        )
    if group.get("attributes"):
        attributes = [
            {**registry.attributes[one["ref"]], **one} for one in group["attributes"]
        ]
        lines.append(_table("attribute", map(_row, attributes)))
        lines += _notes(attributes, explained)
    if "body" in group:
        lines += _body(group["body"])
    return "\n".join(lines)


def _body(body: Mapping[str, Any]) -> list[str]:
    example = _examples(body)
    lines = [
        _paragraph(
            f"Body: {body['brief']}" + (f" Example: {example}" if example else "")
        )
    ]
    rows = [
        _row({**field, "ref": path})
        for path, field in _fields(body.get("fields", ()), "")
    ]
    return [*lines, _table("field of the body", rows)] if rows else lines


def _fields(
    fields: Iterable[Mapping[str, Any]], prefix: str
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for field in fields:
        path = f"{prefix}{field['id']}"
        yield path, field
        yield from _fields(field.get("fields", ()), f"{path}.")


def _row(attribute: Mapping[str, Any]) -> str:
    kind, name = attribute["type"], attribute["ref"]
    template = _TEMPLATE.fullmatch(kind) if isinstance(kind, str) else None
    if template is not None:
        name, kind = f"{name}.<key>", template[1]
    cells = (
        f"`{name}`",
        _type(kind),
        _level(attribute.get("requirement_level", "recommended")),
        _examples(attribute),
        " ".join(attribute["brief"].split()),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _notes(attributes: Iterable[Mapping[str, Any]], explained: set[str]) -> list[str]:
    """Return one list of the notes that are not on the page yet, and add their attributes to *explained*."""
    items: list[str] = []
    for attribute in attributes:
        if not attribute.get("note") or attribute["ref"] in explained:
            continue
        explained.add(attribute["ref"])
        items.append(
            _paragraph(f"* `{attribute['ref']}`: {attribute['note']}", indent="  ")
        )
    return ["".join(items)] if items else []


def _type(kind: str | Mapping[str, Any]) -> str:
    if isinstance(kind, str):
        return kind
    return "string: " + ", ".join(f"`{member['value']}`" for member in kind["members"])


def _level(level: str | Mapping[str, str]) -> str:
    if isinstance(level, str):
        return level.replace("_", "-").capitalize()
    ((name, condition),) = level.items()
    return f"{name.replace('_', ' ').capitalize()}: {condition[0].lower()}{condition[1:].rstrip('.')}"


def _examples(attribute: Mapping[str, Any]) -> str:
    return "; ".join(f"`{_text(one)}`" for one in attribute.get("examples", ()))


def _text(example: object) -> str:
    return (
        example.replace("\n", "\\n")
        if isinstance(example, str)
        else json.dumps(example)
    )


def _table(first: str, rows: Iterable[str]) -> str:
    head = f"| {first} | type | requirement level | example | description |\n|---|---|---|---|---|"
    return "\n".join((head, *rows)) + "\n"


def _paragraph(text: str, *, indent: str = "") -> str:
    words = " ".join(text.split())
    lines = textwrap.fill(
        words,
        _WIDTH,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines + "\n"


def _anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
