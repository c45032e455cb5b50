"""Run folder -> known project and name of its run, for a process that has only the id."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import NamedTuple

from otel_bridge.emit.config.identity import Identity
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.report import read_report
from otel_bridge.journal.segment import header_in

_MAX_SEGMENTS = 64


class _KnownName(NamedTuple):
    """Holds a project or name, and whether its process generated the text."""

    is_generated: bool
    text: str


def with_known_names(identity: Identity, folder: RunFolder) -> Identity:
    """Return *identity* with the known project and name where this process generated its own.

    Args:
        identity: The run; a run without a given id is found by its names, which therefore stay.
        folder: The run's folder on this machine, if there is one.
    """
    if not (identity.id_given and identity.generated):
        return identity
    projects, names = _known_names(folder)
    if identity.project_generated and projects:
        project = min(projects, key=_is_generated)
        identity = replace(
            identity, project=project.text, project_generated=project.is_generated
        )
    if identity.name_generated and names:
        name = min(names, key=_is_generated)
        identity = replace(identity, name=name.text, name_generated=name.is_generated)
    return identity


def _is_generated(name: _KnownName) -> bool:
    """Return what makes a chosen text go before a generated one; of several the first counts."""
    return name.is_generated


def _known_names(folder: RunFolder) -> tuple[list[_KnownName], list[_KnownName]]:
    """Return the projects and names of the report, then of the run's processes in order of their start."""
    projects: list[_KnownName] = []
    names: list[_KnownName] = []

    def add(
        project: str, name: str, generated: Container[str], name_field: str
    ) -> None:
        if project:
            projects.append(_KnownName("project" in generated, project))
        if name:
            names.append(_KnownName(name_field in generated, name))

    report = read_report(folder)
    if report is not None:
        add(report.project, report.name, report.generated.split(","), "name")
    files = sorted(folder.segments(), key=lambda file: file.mtime_ns)[:_MAX_SEGMENTS]
    headers = [header_in(file.path) for file in files]
    of_processes = [
        header
        for header in headers
        if header is not None and header.kind in {"process", "launcher"}
    ]
    for header in sorted(of_processes, key=lambda header: header.created_unix_ns):
        add(header.project, header.run_name, header.generated, "run_name")
    return projects, names
