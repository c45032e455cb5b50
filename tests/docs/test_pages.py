"""The pages say what the code does: settings, options, reasons, links, code."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
from pathlib import Path

import click
import pytest

from docs_site import settings_page
from otel_bridge import exporter, settings
from otel_bridge.cli.main import main
from otel_bridge.emit.drop_reasons import MEANING
from otel_bridge.journal.report import (
    BridgeReport,
    ExporterReport,
    ProcessReport,
    Report,
)
from otel_bridge.translation.rollouts.statistics import Statistics
from support.parsing import parsed

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
SOURCES = sorted(
    path
    for root in ("otel_bridge", "exporters", "collector")
    for path in (ROOT / root).rglob("*.py")
)
NO_REASONS = {"drop/", "replace"}
ADAPTERS = sorted(
    path.stem
    for path in ROOT.glob("otel_bridge/adapters/*.py")
    if path.stem != "__init__"
)
GENERATED = {
    "settings.md",
    "service-metrics.md",
    "semantic-conventions.md",
    "versions.md",
}
MAX_WORDS = 26_500
WITHOUT_REAL_JOB = {"open_instruct", "slime"}
"""Adapters of frameworks that run on GPUs alone."""
MAX_WORDS_OF_A_CELL = 35


def page(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def test_the_page_of_settings_is_fresh() -> None:
    assert page("docs/settings.md") == settings_page.page(), "run `make docs`"


def test_the_page_of_settings_has_every_setting_below_one_heading() -> None:
    of_trackers = [
        one.name
        for name in ("wandb", "mlflow", "trackio")
        for one in exporter.load(name).settings
    ]
    expected = [*(one.name for one in settings.declared()), *of_trackers]
    of_content = [settings.content_of(name).name for name in exporter.available()]

    shown = re.findall(
        r"^\| `([A-Z_]+)` \| .* \| .* \|$", page("docs/settings.md"), re.MULTILINE
    )
    assert sorted(name for name in shown if name not in of_content) == sorted(expected)


@pytest.mark.parametrize("tracker", ["trackio", "wandb"])
def test_the_versions_that_doctor_names_are_those_of_the_page(tracker: str) -> None:
    tested = importlib.import_module(f"otel_bridge_{tracker}.versions").TESTED_WITH

    assert tested.split(", ") == list(
        dict.fromkeys(
            re.findall(rf"\| {tracker} \| (\S+) \|", page("docs/versions.md"))
        )
    )


def test_every_variable_of_otel_bridge_that_a_page_names_is_declared() -> None:
    named = {
        name
        for path in PAGES
        for name in re.findall(r"OTEL_BRIDGE_[A-Z_]*[A-Z]", path.read_text("utf-8"))
    }
    declared = set(re.findall(r"OTEL_BRIDGE_[A-Z_]*[A-Z]", settings_page.page()))
    of_examples = {"OTEL_BRIDGE_CSV_DIR", "OTEL_BRIDGE_TENSORBOARD_DIR"}

    assert named - declared - of_examples == set()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(path: Path) -> None:
    text = path.read_text("utf-8")
    missing: list[str] = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        file, _, anchor = target.partition("#")
        if "://" in target:
            continue
        there = path if not file else (path.parent / file)
        if not there.exists() or (
            anchor and anchor not in _anchors(there.read_text("utf-8"))
        ):
            missing.append(target)

    assert missing == []


def test_the_pages_are_few_enough_words_to_be_read() -> None:
    words = {
        # Borders of tables are not read.
        path.name: len(re.findall(r"\S*[^\W_]\S*", path.read_text("utf-8")))
        for path in ROOT.glob("docs/**/*.md")
        if path.name not in GENERATED and path.parent.name != "decisions"
    }

    longest = sorted(words.items(), key=lambda page: -page[1])[:5]
    assert sum(words.values()) <= MAX_WORDS, f"shorten a page: {longest}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_cell_of_a_table_is_a_paragraph(path: Path) -> None:
    rows = re.findall(r"^\|.*\|$", path.read_text("utf-8"), re.MULTILINE)
    cells = [cell.strip() for row in rows for cell in re.split(r"(?<!\\)\|", row)]

    assert [cell for cell in cells if len(cell.split()) > MAX_WORDS_OF_A_CELL] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_table_has_a_head_and_prose_has_no_spaces_to_spare(path: Path) -> None:
    text = re.sub(
        r"^( *)```.*?^\1```",
        "",
        path.read_text("utf-8"),
        flags=re.DOTALL | re.MULTILINE,
    )
    blocks = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)

    # A blank line ends a table: the rows behind it are shown as text.
    headless = [
        block.splitlines()[0]
        for block in blocks
        if not re.match(r".*\n\|(?: ?:?-+:? ?\|)+\n", block)
    ]
    assert headless == []
    assert re.findall(r"^.* $|^[^|\n]*\S  +\S.*$", text, re.MULTILINE) == []


def _anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles
    }


def test_the_script_of_the_readme_is_the_example() -> None:
    (shown,) = re.findall(
        r"```python\n# train\.py\n(.*?)```", page("README.md"), re.DOTALL
    )
    example = ast.parse(page("examples/train.py"))
    example.body = example.body[1:]  # its docstring

    assert ast.unparse(ast.parse(shown)) == ast.unparse(example)


def test_the_exporter_on_the_page_is_the_example() -> None:
    assert (
        f"```python\n{page('examples/exporter_csv/otel_bridge_csv.py')}```\n"
        in page("docs/own-exporter.md")
    )


@pytest.mark.parametrize("name", main.list_commands(click.Context(main)))
def test_the_page_of_commands_names_every_option_and_exit_code(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    text = page("docs/commands.md")
    (section,) = re.findall(
        rf"^## `otel-bridge {name}.*?(?=^## |\Z)", text, re.DOTALL | re.MULTILINE
    )
    if name == "serve":
        section += page("docs/service.md")  # its options stand there

    members = [
        command,
        *(command.commands.values() if isinstance(command, click.Group) else ()),
    ]
    parameters = [parameter for member in members for parameter in member.params]
    options = [
        each
        for each in parameters
        if isinstance(each, click.Option) and not each.hidden
    ]
    assert [option.opts[0] for option in options if option.opts[0] not in section] == []
    assert re.search(
        rf"^\| [^|]*`{name}\b", text.partition("## Exit codes")[2], re.MULTILINE
    )


@pytest.mark.parametrize("name", ADAPTERS)
def test_each_adapter_has_a_test_a_page_and_a_row_in_the_list_of_frameworks(
    name: str,
) -> None:
    address = f"frameworks/{name.replace('_', '-')}.md"
    parts = {
        f"tests/adapters/test_{name}.py": (
            ROOT / f"tests/adapters/test_{name}.py"
        ).is_file(),
        f"docs/{address}": (ROOT / "docs" / address).is_file(),
        "row in docs/frameworks.md": f"]({address})" in page("docs/frameworks.md"),
        "line in docs_site/mkdocs.yml": address in page("docs_site/mkdocs.yml"),
        f"tests/frameworks/test_{name}.py": name in WITHOUT_REAL_JOB
        or (ROOT / f"tests/frameworks/test_{name}.py").is_file(),
        "PLACES of tests/frameworks/test_signatures.py": name in WITHOUT_REAL_JOB
        or f'"{name.partition("_")[0]}": ['
        in page("tests/frameworks/test_signatures.py"),
    }

    assert [part for part, exists in parts.items() if not exists] == []


def test_the_page_of_rollouts_names_every_statistic_of_a_step() -> None:
    statistics = Statistics()
    statistics.add("group", 1.0, staleness=1)
    keys = [
        key.removeprefix("rollouts/") for key in statistics.values(kept=1, split=None)
    ]

    assert [key for key in keys if f"`{key}`" not in page("docs/rollouts.md")] == []


def test_every_reason_of_a_drop_is_on_the_page_and_every_reason_on_the_page_is_counted() -> (
    None
):
    documented = page("docs/emitting-reference.md").partition("## Bad input")[2]
    counted = (
        set(MEANING)
        | {reason for path in SOURCES for reason in _reasons(path)}
        | _constants()
    )

    assert sorted(reason for reason in counted if f"`{reason}`" not in documented) == []
    named = set(re.findall(r"`([a-z]+[_/][a-z_/]+)`", documented)) - {
        "clipped_bytes",
        "missing_rows",
        "log_generations",
        "actor/loss",
    }
    assert sorted(named - counted) == []


def _reasons(path: Path) -> set[str]:
    """The first text given to whatever counts drops."""
    found: set[str] = set()
    for call in ast.walk(parsed(path.read_text("utf-8"))):
        if not isinstance(call, ast.Call):
            continue
        name = (
            call.func.attr
            if isinstance(call.func, ast.Attribute)
            else getattr(call.func, "id", "")
        )
        if name in {"drop", "_drop", "count_drop", "count"}:
            values = [
                value
                for argument in call.args[:2]
                for value in ast.walk(argument)
                if isinstance(value, ast.Constant)
            ]
            found |= {
                str(value.value) for value in values if isinstance(value.value, str)
            }
    return {
        reason for reason in found if re.fullmatch(r"[a-z]+[a-z_/]*", reason)
    } - NO_REASONS


def _constants() -> set[str]:
    modules = (
        "metrics.assembler",
        "metrics.configs",
        "metrics.summaries",
        "metrics.media",
        "events",
        "frame_decoder",
        "engines.pipeline",
        "ranks",
        "tokens.rollouts",
    )
    loaded = [
        importlib.import_module(f"otel_bridge.translation.{name}") for name in modules
    ]
    loaded.append(importlib.import_module("otel_bridge.bridge.ingest.segment_reader"))
    names = (
        "INCOMPLETE",
        "INVALID",
        "TOO_LARGE",
        "TOO_MANY",
        "LATE",
        "RESTARTED",
        "TOO_MANY_SERIES",
        "NOT_SHOWN",
        "NOT_A_VALUE",
        "TOO_MANY_ALERTS",
        "ALERT_WITHOUT_TITLE",
        "UNDECODABLE",
        "OTHER_RUN",
        "SEGMENT_GAPS",
        "EVICTED",
    )
    return {
        str(getattr(module, name))
        for module in loaded
        for name in names
        if hasattr(module, name)
    } | {
        "rollout_empty_prompt",  # counted in a loop over names
        "ranks/late",
        # Counted below the space of their steps.
        "phase/too_many_names",
        "phase/unclosed",
        "tokens/twice",
        "tokens/length",
        # The store of steps counts these for each kind of step.
        *(
            f"{kind}/{reason}"
            for kind in ("phase", "lineage", "tokens")
            for reason in ("invalid", "late", "too_many")
        ),
    }


@pytest.mark.parametrize("kind", [Report, ProcessReport, ExporterReport, BridgeReport])
def test_the_page_of_the_run_folder_names_every_field_of_the_report(
    kind: type[object],
) -> None:
    documented = set(
        re.findall(
            r"`([a-z_]+)`", page("docs/run-folder.md").partition("## report.json")[2]
        )
    )

    assert sorted({field.name for field in dataclasses.fields(kind)} - documented) == []  # type: ignore[arg-type]


def test_pictures_are_small_enough_for_a_checkout() -> None:
    sizes = {
        path.name: path.stat().st_size for path in ROOT.glob("docs/pictures/*.png")
    }

    assert set(sizes) == {
        "demo.png", "doctor.png", "drain.png", "init.png", "run.png", "status.png",
        "mlflow.png", "mlflow-rollout.png", "trackio.png", "trackio-rollout.png", "trackio-rollouts.png",
        "trl-trackio.png", "timeline.png", "consumed.png", "tokens.png", "watch.png", "ranks.png", "engines.png",
    }  # fmt: skip
    assert max(sizes.values()) < 300_000


def test_the_defaults_that_pages_name_are_those_declared() -> None:
    bounds = {
        "16 GiB": settings.MAX_BYTES,
        "64 MiB": settings.REQUEST_BYTES,
        "4 MiB": settings.ROLLOUT_BYTES,
    }
    shown = page("docs/guarantees.md")

    for text, setting in bounds.items():
        number, unit = text.split()
        assert (text in shown, setting.default) == (
            True,
            settings.size_bytes(f"{number}{unit}"),
        )
    assert (
        f"`{settings.MAX_ROLLOUTS_PER_STEP.name}`, {settings.MAX_ROLLOUTS_PER_STEP.default}"
        in shown
    )
