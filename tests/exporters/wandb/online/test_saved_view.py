"""The saved view of the featured keys, which the real package wandb-workspaces makes at the stand-in server."""

from __future__ import annotations

import dataclasses
import json
import logging
import re
from typing import Any

import pytest
from wandb_workspaces import workspaces

from otel_bridge.exporter import RunInfo
from otel_bridge.testing import MemoryTable, open_writer
from otel_bridge.translation.featured import section_prefix
from otel_bridge_wandb import exporter
from support.trackers import wandb_online_runs as online
from support.trackers.wandb_backend.graphql import ENTITY
from support.trackers.wandb_backend.server import WandbServer

server, run = online.server, online.run
KEYS = "loss, time/step"


def write(
    server: WandbServer, run: RunInfo, memory: MemoryTable, keys: str = KEYS
) -> None:
    env = {**server.environment(), **online.FAST, "OTEL_BRIDGE_FEATURED": keys}
    writer = open_writer(exporter, run, exporter.read_settings(env, run.folder), memory)
    writer.write_rows(online.rows(1, 2))
    writer.close()


def sections_of(server: WandbServer) -> list[dict[str, Any]]:
    """Sections of the only view."""
    (view,) = server.store.views.values()
    sections = json.loads(view["spec"])["section"]["panelBankConfig"]["sections"]
    return [section for section in sections if section["panels"]]


def test_the_featured_keys_are_the_first_section_of_a_view_that_the_project_keeps(
    server: WandbServer, run: RunInfo
) -> None:
    write(server, run, MemoryTable())

    (section,) = sections_of(server)
    panels = [panel["config"] for panel in section["panels"]]
    assert (section["name"], [panel["chartTitle"] for panel in panels]) == (
        "Featured",
        ["loss", "time/step"],
    )
    assert re.match(panels[1]["metricRegex"], f"{section_prefix(1)}trainer/time/step")
    assert not re.match(panels[1]["metricRegex"], f"{section_prefix(0)}trainer/loss")
    ((_, project, name),) = server.store.views
    url = f"{server.url}/{ENTITY}/{project}?nw={name.removeprefix('nw-').removesuffix('-v')}"
    assert workspaces.Workspace.from_url(url).name == "Featured by otel-bridge"


def test_a_view_that_is_there_stays_as_a_person_left_it(
    server: WandbServer, run: RunInfo
) -> None:
    memory = MemoryTable()
    write(server, run, memory)
    (view,) = server.store.views.values()
    view["displayName"] = "mine"

    write(server, dataclasses.replace(run, id="second"), MemoryTable())
    assert [view["displayName"] for view in server.store.views.values()] == ["mine"]

    server.store.views.clear()
    write(server, run, memory)
    assert server.store.views == {}


def test_without_featured_keys_the_project_gets_no_view(
    server: WandbServer, run: RunInfo
) -> None:
    write(server, run, MemoryTable(), keys="")

    assert server.store.views == {}


def test_a_server_that_refuses_views_costs_one_line_and_no_row(
    server: WandbServer, run: RunInfo, caplog: pytest.LogCaptureFixture
) -> None:
    server.answer(403, what="UpsertView2")
    with caplog.at_level(logging.WARNING, "otel_bridge.wandb"):
        write(server, run, MemoryTable())

    lines = [
        record.getMessage()
        for record in caplog.records
        if "saved view" in record.getMessage()
    ]
    assert len(lines) == 1
    assert "403" in lines[0]
    assert online.losses(server, run) == [1, 2]
