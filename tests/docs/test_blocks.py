"""The code on the pages runs as it stands there; a new block without a test fails here."""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from pathlib import Path

import pytest

from otel_bridge.journal.folder import RunFolder, run_folders
from otel_bridge.journal.report import read_report
from support.trackers import mlflow_reading
from support.trainers.command_runs import (
    call,
    ended,
    environment,
    only_folder,
    records,
    values,
)
from support.trainers.stock_programs import GLOBAL_API

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "README.md",
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
)
GIVEN = """
import otel_bridge
messages = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
prompts, responses, rewards, groups, versions = ["2 + 2?"], ["4"], [1.0], ["p17"], [9]
question, answer, found, conversation = "2 + 2?", "4", ["4"], messages
without_names = str.upper
"""
"""What the program around a block has."""
OUTPUT = "text"
"""The language of blocks that show what a command prints."""
ELSEWHERE = {
    (
        "README.md",
        "sh",
    ): 10,  # below; those of other machines in test_many_machines and tests/collector
    ("docs/alerts.md", "bash"): 2,  # tests/e2e/test_alerts, test_webhook
    ("docs/architecture.md", ""): 1,
    ("docs/collector.md", ""): 1,
    ("docs/collector.md", "bash"): 1,  # tests/collector/otelcol/test_pipelines
    ("docs/collector.md", "yaml"): 1,
    ("docs/capture.md", "sh"): 2,  # tests/capture
    ("docs/commands.md", "sh"): 1,  # tests/cli
    ("docs/coming-from.md", "python"): 6,  # test_coming_from
    ("docs/engines.md", "bash"): 1,  # tests/bridge/test_engine_scraper
    ("docs/exporters.md", "bash"): 1,  # as in README.md
    ("docs/many-machines.md", "bash"): 1,  # test_many_machines
    ("docs/many-machines.md", "sh"): 1,  # as in README.md
    ("docs/many-machines.md", "python"): 2,  # and tests/e2e/programs/test_ray_actors
    ("docs/mlflow.md", "bash"): 1,  # as in README.md
    ("docs/own-exporter.md", "python"): 2,  # test_pages, test_examples
    ("docs/own-exporter.md", "toml"): 1,
    (
        "docs/other-environments.md",
        "sh",
    ): 1,  # tests/e2e/programs/test_other_environments
    (
        "docs/rollouts.md",
        "bash",
    ): 2,  # tests/cli/doctor/test_command, tests/test_redaction
    ("docs/semantic-conventions.md", "bash"): 2,  # test_semconv_page
    ("docs/semantic-conventions.md", "json"): 1,
    ("docs/service.md", "bash"): 2,  # tests/cli/test_serve
    ("docs/trace-backends.md", "bash"): 1,  # tests/e2e/trackers/test_trace_backends
    ("docs/trackio.md", "bash"): 1,  # as in README.md
    ("docs/wandb.md", "bash"): 1,  # as in README.md
}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```",
        (ROOT / page).read_text("utf-8"),
        re.DOTALL | re.MULTILINE,
    )


def run(tmp_path: Path, code: str, **variables: str) -> Path:
    """Run a program into the exporter ``file``; returns its run folder."""
    (tmp_path / "program.py").write_text(GIVEN + code, "utf-8")
    env = environment(tmp_path, **{"OTEL_BRIDGE_EXPORTERS": "file", **variables})

    done = call([sys.executable, "program.py"], cwd=tmp_path, env=env)

    assert (done.returncode, "dropped" in done.stderr) == (0, False), done.stderr
    assert ended(tmp_path / ".otel-bridge").drops == {}
    return only_folder(tmp_path / ".otel-bridge").path


def rollouts(tmp_path: Path) -> list[dict[str, object]]:
    return [
        line
        for line in records(only_folder(tmp_path / ".otel-bridge"))
        if line["kind"] == "rollout"
    ]


def test_every_block_of_every_page_is_run_by_a_test() -> None:
    found: dict[tuple[str, str], int] = {}
    for page in PAGES:
        fences = re.findall(
            r"^```(\w*)$", (ROOT / page).read_text("utf-8"), re.MULTILINE
        )
        for language in fences[::2]:
            if language != OUTPUT:
                found[page, language] = found.get((page, language), 0) + 1

    here = {
        ("README.md", "python"): 2,
        ("docs/emitting.md", "python"): 2,
        ("docs/rollouts.md", "python"): 2,
    }
    here |= {
        ("docs/media.md", "python"): 2,
        ("docs/phases.md", "python"): 1,
        ("docs/lineage.md", "python"): 1,
    }
    here |= {("docs/tokens.md", "python"): 1}
    assert found == {**ELSEWHERE, **here, ("docs/emitting-reference.md", "python"): 1}


@pytest.mark.parametrize("page", PAGES)
def test_every_python_block_is_python(page: str) -> None:
    for block in blocks(page, "python"):
        ast.parse(textwrap.dedent(block))


def test_the_trials_of_the_reference_are_two_runs(tmp_path: Path) -> None:
    (trials,) = blocks("docs/emitting-reference.md", "python")
    (tmp_path / "program.py").write_text(GIVEN + trials, "utf-8")

    done = call(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=environment(tmp_path, OTEL_BRIDGE_EXPORTERS="file"),
    )

    assert done.returncode == 0, done.stderr
    found = [records(folder) for folder in run_folders(tmp_path / ".otel-bridge")]
    rates = [
        line["config"]["lr"]
        for lines in found
        for line in lines
        if line["kind"] == "config"
    ]
    assert sorted(set(rates)) == [1e-4, 1e-3]


def test_the_phases_of_the_page_are_a_row_a_step(tmp_path: Path) -> None:
    (loop,) = blocks("docs/phases.md", "python")
    (tmp_path / "program.py").write_text(loop, "utf-8")

    done = call(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=environment(tmp_path, OTEL_BRIDGE_EXPORTERS="file"),
    )

    assert done.returncode == 0, done.stderr
    (folder,) = run_folders(tmp_path / ".otel-bridge")
    rows = [line for line in records(folder) if line["kind"] == "row"]
    assert sorted(row["step"] for row in rows) == [*range(100)]
    assert {key.split("/")[-1] for key in rows[0]["values"]} == {
        "generate", "train", "forward", "step", "idle", "overlap", "ranks",
    }  # fmt: skip


def test_the_rollout_of_the_page_on_lineage_shows_the_step_that_consumed_it(
    tmp_path: Path,
) -> None:
    (program,) = blocks("docs/lineage.md", "python")

    run(tmp_path, program)

    (rollout,) = rollouts(tmp_path)
    assert rollout["rewards"] == {"trained_step": 7.0}
    rows = [
        line
        for line in records(only_folder(tmp_path / ".otel-bridge"))
        if line["kind"] == "row"
    ]
    assert [
        row["values"]["trainer/lineage/staleness/max"]
        for row in rows
        if "trainer/lineage/consumed" in row["values"]
    ] == [1]


def test_the_program_of_the_page_on_tokens_gives_the_figures_of_its_tokens(
    tmp_path: Path,
) -> None:
    (program,) = blocks("docs/tokens.md", "python")

    run(tmp_path, program)

    folder = only_folder(tmp_path / ".otel-bridge")
    assert [value for _, value in values(folder)["trainer/tokens/mismatch/max"]] == [
        pytest.approx(0.1)
    ]
    assert sorted(
        each["rewards"]["tokens/entropy"] for each in rollouts(tmp_path)
    ) == pytest.approx([0.4, 1.0])  # type: ignore[index]


def test_the_role_of_the_readme_has_its_rollout_and_its_row(tmp_path: Path) -> None:
    _, role = blocks("README.md", "python")

    run(tmp_path, role)

    (rollout,) = rollouts(tmp_path)
    assert values(only_folder(tmp_path / ".otel-bridge"))["explorer/reward"] == [
        (7, 1.0)
    ]
    assert (rollout["reward"], rollout["step"], len(rollout["spans"])) == (1.0, 7, 2)  # type: ignore[arg-type]


def test_the_first_block_of_emitting_is_a_program(tmp_path: Path) -> None:
    run(tmp_path, blocks("docs/emitting.md", "python")[0])

    found = values(only_folder(tmp_path / ".otel-bridge"))
    assert found == {"trainer/loss": [(10, 0.5)], "trainer/actor/lr": [(10, 1e-6)]}


@pytest.mark.long
def test_the_client_of_a_tracker_in_emitting_writes_to_the_same_run(
    tmp_path: Path,
) -> None:
    _, beside = blocks("docs/emitting.md", "python")
    begin = (
        'from mlflow import MlflowClient\nrun = otel_bridge.init("gsm8k", "ppo-7b")\nrun.log({"loss": 0.5}, step=10)\n'
        'open("model.txt", "w").close()\n'
    )

    run(
        tmp_path,
        begin + beside,
        OTEL_BRIDGE_EXPORTERS="file,mlflow",
        MLFLOW_TRACKING_URI=mlflow_reading.database(tmp_path),
    )

    assert list(tmp_path.glob("mlruns/**/model.txt")) != []


def test_the_blocks_of_the_page_of_rollouts_run(tmp_path: Path) -> None:
    record, redact = blocks("docs/rollouts.md", "python")

    run(tmp_path, redact + record)

    recorded = rollouts(tmp_path)
    (judged,) = [
        rollout for rollout in recorded if rollout["rewards"] == {"judge": 0.7}
    ]
    assert sorted(rollout["reward"] for rollout in recorded) == [1.0, 1.0, 1.0, 1.2]  # type: ignore[type-var]
    assert (judged["advantage"], len(judged["spans"])) == (0.4, 3)  # type: ignore[arg-type]
    assert {rollout["role"] for rollout in recorded} == {"explorer"}


@pytest.mark.slow
def test_the_capture_of_the_readme_records_a_program_as_it_is(tmp_path: Path) -> None:
    (command,) = (block for block in blocks("README.md", "sh") if "--capture" in block)
    program = "import wandb\nwandb.init(project='p', name='e')\nwandb.log({'loss': 0.5}, step=3)\n"
    (tmp_path / "train.py").write_text(program, "utf-8")
    script = command.replace(
        "trackio,mlflow", "file"
    )  # each of them has tests of its own

    done = call(["bash", "-e", "-c", script], cwd=tmp_path, env=environment(tmp_path))

    assert done.returncode == 0, done.stderr
    assert values(only_folder(tmp_path / ".otel-bridge")) == {"loss": [(3, 0.5)]}


@pytest.mark.long
def test_the_commands_of_the_readme_that_need_one_machine_do_what_they_say(
    tmp_path: Path,
) -> None:
    first, others, stock, instrumented, held = (
        block
        for block in blocks("README.md", "sh")
        if not re.search(r"make demo|pip install|OTEL_BRIDGE_TOKEN|--capture", block)
    )
    (program,) = re.findall(
        r"# train\.py\n.*", blocks("README.md", "python")[0], re.DOTALL
    )
    (tmp_path / "train.py").write_text(program, "utf-8")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "any_otel_program.py").write_text(textwrap.dedent(GLOBAL_API), "utf-8")
    first = first.replace(
        "trackio show", "trackio list runs"
    )  # else it serves until Ctrl-C
    script = f"{first}\n{others}\n{stock}\n{instrumented}\n{held}".replace(
        "/scratch/me", str(tmp_path / "scratch")
    )
    (tmp_path / "scratch").mkdir()
    env = environment(tmp_path, TRACKIO_DIR=str(tmp_path / "trackio"))

    done = call(["bash", "-e", "-c", script], cwd=tmp_path, env=env)

    assert done.returncode == 0, done.stdout + done.stderr
    reports = {
        folder.run_id: read_report(folder)
        for folder in run_folders(tmp_path / ".otel-bridge")
    }
    assert {report is not None and report.ended for report in reports.values()} == {
        True
    }
    assert len(reports) == 6
    assert "first" in done.stdout


def test_the_program_with_media_leaves_their_files(tmp_path: Path) -> None:
    code, rollout = blocks("docs/media.md", "python")

    folder = run(tmp_path, code.replace("run.finish()", f"{rollout}run.finish()"))

    media = {
        str(line["key"]): line["items"]
        for line in records(RunFolder.at(folder))
        if line["kind"] == "media"
    }
    assert {key: [item["type"] for item in items] for key, items in media.items()} == {
        "trainer/sample": ["image"], "trainer/grid": ["image", "image"], "trainer/answers": ["table"],
        "trainer/notes": ["markdown"],
    }  # fmt: skip
    (recorded,) = rollouts(tmp_path)
    assert "data:image/png;base64," in str(recorded["messages"])
    assert (
        folder / "file" / media["trainer/notes"][0]["file"]
    ).read_text() == "**Good** so far."
