"""Run folder -> known project and name of its run, for a process that has only the id."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

from otel_bridge.emit.config.identity import Identity
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.report import read_report
from otel_bridge.journal.segment import header_in

_MAX_SEGMENTS = 64
"""Most segments that are opened: `init()` waits for it."""


class _KnownText(NamedTuple):
    """Holds a project or name, and whether its process generated the text."""

    generated: bool
    text: str


def with_known_names(identity: Identity, folder: RunFolder) -> Identity:
    """Return *identity* with the known project and name where this process generated its own.

    Unchanged where the folder shows none; a report or header that cannot be read shows none.

    Args:
        identity: The run; a run without a given id is found by its names, which therefore stay.
        folder: The run's folder on this machine; where there is none, nothing is known.
    """
    if not (identity.id_given and identity.generated):
        return identity
    report = read_report(folder)
    projects: list[_KnownText] = []
    names: list[_KnownText] = []
    if report is not None:
        generated = report.generated.split(",")
        projects.append(_KnownText("project" in generated, report.project))
        names.append(_KnownText("name" in generated, report.name))
    for header in _headers(folder):
        projects.append(_KnownText("project" in header.generated, header.project))
        names.append(_KnownText("run_name" in header.generated, header.run_name))
    project = _best(projects)
    if identity.project_generated and project is not None:
        identity = replace(
            identity, project=project.text, project_generated=project.generated
        )
    name = _best(names)
    if identity.name_generated and name is not None:
        identity = replace(identity, name=name.text, name_generated=name.generated)
    return identity


def _best(texts: Iterable[_KnownText]) -> _KnownText | None:
    """Return the first text that somebody chose, else the first generated one.

    ``None`` when all are empty.
    """
    known_texts = [candidate for candidate in texts if candidate.text]
    return min(known_texts, key=attrgetter("generated"), default=None)


def _headers(folder: RunFolder) -> Sequence[SegmentHeader]:
    """Return the headers of the run's processes, in order of their start.

    A damaged one is left out.
    """
    files = sorted(folder.segments(), key=lambda file: file.mtime_ns)[:_MAX_SEGMENTS]
    headers: list[SegmentHeader] = []
    for file in files:
        header = header_in(file.path)
        if header is not None and header.kind in {"process", "launcher"}:
            headers.append(header)
    return sorted(headers, key=lambda header: header.created_unix_ns)
