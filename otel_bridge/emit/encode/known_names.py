"""Run folder -> known project and name of its run, for a process that has only the id."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from otel_bridge.emit.config.identity import Identity
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.report import read_report
from otel_bridge.journal.segment import header_in

_MAX_SEGMENTS = 64


class _Known(NamedTuple):
    """Holds a project or name, and whether its process generated the text."""

    text: str
    generated: bool


def with_known_names(identity: Identity, folder: RunFolder) -> Identity:
    """Return *identity* with the known project and name where this process generated its own.

    Args:
        identity: The run; a run without a given id is found by its names, which therefore stay.
        folder: The run's folder on this machine, if there is one.
    """
    if not (
        identity.id_given and (identity.project_generated or identity.name_generated)
    ):
        return identity
    known_pairs = [*_of_report(folder), *_of_headers(folder)]
    projects = [project for project, _ in known_pairs if project.text]
    names = [name for _, name in known_pairs if name.text]
    if identity.project_generated and projects:
        # A chosen text goes before a generated one; of several the first, that of the report.
        project = min(projects, key=lambda known_text: known_text.generated)
        identity = replace(
            identity, project=project.text, project_generated=project.generated
        )
    if identity.name_generated and names:
        name = min(names, key=lambda known_text: known_text.generated)
        identity = replace(identity, name=name.text, name_generated=name.generated)
    return identity


def _of_report(folder: RunFolder) -> list[tuple[_Known, _Known]]:
    report = read_report(folder)
    if report is None:
        return []
    generated = report.generated.split(",")
    return [
        (
            _Known(report.project, "project" in generated),
            _Known(report.name, "name" in generated),
        )
    ]


def _of_headers(folder: RunFolder) -> list[tuple[_Known, _Known]]:
    """Return project and name from the headers of the run's processes, in order of their start."""
    files = sorted(folder.segments(), key=lambda file: file.mtime_ns)[:_MAX_SEGMENTS]
    headers: list[SegmentHeader] = []
    for file in files:
        header = header_in(file.path)
        if header is not None and header.kind in {"process", "launcher"}:
            headers.append(header)
    headers.sort(key=lambda header: header.created_unix_ns)
    return [
        (
            _Known(header.project, "project" in header.generated),
            _Known(header.run_name, "run_name" in header.generated),
        )
        for header in headers
    ]
