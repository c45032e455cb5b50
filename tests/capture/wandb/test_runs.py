"""Which run a captured ``wandb.init()`` begins, joins or ends, and with which status."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from otel_bridge.emit.config.capture_env import capture_variables
from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.report import read_report
from support.trainers.captured_wandb import (
    captured,
    captured_config,
    captured_points,
    captured_summary,
    rollouts,
)
from support.trainers.command_runs import (
    PYTHON,
    call,
    ended,
    environment,
    only_folder,
    otel_bridge,
    program,
    records,
    report_of,
    runs,
    statuses,
    values,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("wandb.finish(exit_code=3)", "failed"),
        ("raise SystemExit(0)", "finished"),
        ("import sys; sys.exit()", "finished"),
        ("wandb.run.__exit__(ValueError, ValueError('x'), None)", "failed"),
    ],
)
def test_the_exit_code_is_the_status(tmp_path: Path, code: str, status: str) -> None:
    captured(
        tmp_path,
        f"import wandb\nwandb.init(project='p', name='e')\nwandb.log({{'a': 1}}, step=3)\n{code}",
    )

    assert statuses(only_folder(runs(tmp_path))) == [status]
    assert captured_points(tmp_path) == {"a": [(3, 1)]}


@pytest.mark.parametrize(
    "how", ["mode='disabled'", "settings=wandb.Settings(mode='disabled')", ""]
)
def test_a_run_that_the_program_disables_is_not_recorded(
    tmp_path: Path, how: str
) -> None:
    code = f"import wandb\nrun = wandb.init({how})\nrun.log({{'a': 1}})\nprint(run.disabled)"
    variables = {} if how else {"WANDB_MODE": "disabled"}

    output = captured(tmp_path, code, **variables)

    assert output.splitlines()[0] == "True"
    assert not list(runs(tmp_path).glob("*/segments/*"))


def test_a_run_begun_again_in_one_process_is_another_run(tmp_path: Path) -> None:
    code = """
    import wandb
    for name in ("a", "b"):
        with wandb.init(project="p", name=name, reinit="finish_previous") as run:
            run.log({name: 1}, step=1)
    """

    captured(tmp_path, code)

    assert (
        sorted(
            path.name
            for path in runs(tmp_path).iterdir()
            if (path / "segments").is_dir()
        )
        != []
    )
    assert len(list(runs(tmp_path).glob("*/segments"))) == 2


def test_runs_beside_each_other_are_runs_of_their_own_and_do_not_become_the_programs_run(
    tmp_path: Path,
) -> None:
    code = """
    import wandb
    own = wandb.init(project="p", name="own")
    others = [wandb.init(project="p", name=f"trial{n}", reinit="create_new") for n in range(2)]
    assert wandb.run is own
    for step in range(2):
        for n, run in enumerate(others):
            run.log({"trial": n}, step=step)
        wandb.log({"own": 1}, step=step)
    """

    captured(tmp_path, code)

    found = {
        report.name: values(folder)
        for folder in run_folders(runs(tmp_path))
        if (report := read_report(folder))
    }
    assert found == {
        "own": {"own": [(0, 1), (1, 1)]},
        "trial0": {"trial": [(0, 0), (1, 0)]},
        "trial1": {"trial": [(0, 1), (1, 1)]},
    }


@pytest.mark.parametrize(
    ("variables", "project"),
    [({}, "huggingface"), ({"OTEL_BRIDGE_PROJECT": "mine"}, "mine")],
)
def test_a_chosen_project_wins_over_the_default_of_transformers(
    tmp_path: Path, variables: dict[str, str], project: str
) -> None:
    captured(
        tmp_path,
        "import wandb\nprint(wandb.init(project='huggingface', name='e').project)",
        **variables,
    )

    assert report_of(runs(tmp_path)).project == project


def test_tee_writes_w_and_bs_own_run_too_and_is_refused_with_its_exporter(
    tmp_path: Path,
) -> None:
    code = """
    import wandb
    run = wandb.init(project="p", name="e", config={"lr": 1})
    run.define_metric("train/*", step_metric="train/step")
    wandb.config["seed"] = 3
    wandb.log({"train/loss": 0.5, "train/step": 7})
    run.log({"train/loss": 0.25, "train/step": 8})
    run.summary["best"] = 0.5
    wandb.summary["deep"] = {"a": 1}
    wandb.summary["deep"].update({"b": 2})
    wandb.alert("one", "text")
    run.alert("two", "text", level=wandb.AlertLevel.ERROR)
    run.save("nothing*")
    """
    script = program(tmp_path, "train.py", code)
    env = environment(tmp_path, WANDB_MODE="offline", WANDB_SILENT="true")
    command = ("--capture", "wandb", "--tee", "--", "python", script)

    done = otel_bridge("run", "--exporters", "file", *command, cwd=tmp_path, env=env)
    refused = otel_bridge(
        "run", "--exporters", "wandb", *command, cwd=tmp_path, env=env
    )

    assert done.returncode == 0, done.stderr
    assert "do not reach" not in done.stderr
    assert len(list((tmp_path / "wandb").glob("offline-run-*"))) == 1
    assert captured_points(tmp_path) == {"train/loss": [(7, 0.5), (8, 0.25)]}
    assert captured_config(tmp_path)["seed"] == 3
    assert captured_summary(tmp_path) == {"best": 0.5, "deep/a": 1, "deep/b": 2}
    alerts = [
        one for one in records(only_folder(runs(tmp_path))) if one["kind"] == "alert"
    ]
    assert [(one["title"], one["level"]) for one in alerts] == [
        ("one", "info"),
        ("two", "error"),
    ]
    for line in (r"wandb.summary +3\b", r"wandb.alert +2\b", r"wandb.run.save +1\b"):
        assert re.search(line, done.stderr), done.stderr
    assert refused.returncode == 1
    assert "wandb is an exporter too, and would have every row twice" in refused.stderr


@pytest.mark.long
def test_a_bridge_that_the_captured_program_starts_writes_with_the_real_wandb(
    tmp_path: Path,
) -> None:
    env = environment(tmp_path, OTEL_BRIDGE_EXPORTERS="wandb", WANDB_MODE="offline")
    script = program(
        tmp_path,
        "train.py",
        "import wandb\nwandb.init(project='p', name='e')\nwandb.log({'a': 1})\n",
    )

    done = call(
        [PYTHON, script], cwd=tmp_path, env=env | capture_variables(env, ["wandb"])
    )

    assert done.returncode == 0, done.stderr
    assert ended(runs(tmp_path)).exporters["wandb"].rows == 1


@pytest.mark.parametrize("ending", ["sys.exit(3)", "sys.exit('no data')"])
def test_a_program_that_exits_with_a_code_has_failed_as_in_wandb(
    tmp_path: Path, ending: str
) -> None:
    code = f"""
    import sys, wandb
    own = wandb.init(project="p", name="e")
    wandb.log({{"a": 1}})
    {ending}
    """

    captured(tmp_path, code, code_of_exit=3 if "3" in ending else 1)

    assert statuses(only_folder(runs(tmp_path))) == ["failed"]


@pytest.mark.long
def test_with_tee_the_trials_of_a_sweep_go_on_in_wandb_each_under_the_agents_id_and_are_copied(
    tmp_path: Path,
) -> None:
    code = """
    import os, wandb
    wandb.setup()
    for number in range(2):  # as wandb's agent does around the program's function
        os.environ.update(WANDB_SWEEP_ID="s", WANDB_RUN_ID=f"run{number}")
        wandb.teardown()
        with wandb.init(project="p") as run:
            assert (run.id, type(run) is wandb.Run) == (f"run{number}", True), run.id
            run.log({"loss": number})
    """
    script = program(tmp_path, "train.py", code)
    env = environment(
        tmp_path,
        WANDB_MODE="offline",
        WANDB_SILENT="true",
        OTEL_BRIDGE_CAPTURE_MODE="tee",
    )

    done = otel_bridge(
        "run",
        "--exporters",
        "file",
        "--capture",
        "wandb",
        "--",
        "python",
        script,
        cwd=tmp_path,
        env=env,
    )

    assert done.returncode == 0, done.stderr
    assert sorted(
        path.name[-4:] for path in (tmp_path / "wandb").glob("offline-run-*")
    ) == [
        "run0",
        "run1",
    ]
    assert sorted(str(values(folder)) for folder in run_folders(runs(tmp_path))) == [
        "{'loss': [(0, 0)]}", "{'loss': [(0, 1)]}"
    ]  # fmt: skip


def test_teardown_ends_the_run_and_another_may_begin(tmp_path: Path) -> None:
    code = """
    import wandb
    wandb.init(project="p", name="e")
    wandb.log({"a": 1})
    wandb.teardown()
    wandb.teardown()
    assert wandb.run is None
    wandb.init(project="p", name="e").log({"a": 2})
    """

    captured(tmp_path, code)

    assert captured_points(tmp_path) == {"a": [(0, 1), (1, 2)]}


def test_keys_that_are_not_text_become_text_and_cost_neither_row_nor_table(
    tmp_path: Path,
) -> None:
    captured(
        tmp_path,
        """
        import wandb
        run = wandb.init(project="p", name="keys")
        run.define_metric("val/*", step_metric="epoch")
        run.log({"good": 2, 5: 6})
        run.log({"gen": wandb.Table(["prompt", "response", "reward"], data=[["i", "o", 0.5]])})
        """,
    )

    assert captured_points(tmp_path)["good"] == [(0, 2)]
    assert captured_points(tmp_path)["5"] == [(0, 6)]
    assert len(rollouts(tmp_path)) == 1


def test_with_the_exporter_none_nothing_is_recorded_and_nothing_is_left(
    tmp_path: Path,
) -> None:
    code = "import wandb\nrun = wandb.init(project='p', name='e')\nrun.log({'a': 1})\nprint(run.summary['a'])"

    output = captured(tmp_path, code, exporters="none")

    assert "captured: nothing; the exporters are none" in output
    assert "wandb.log" not in output
    assert {path.name for path in tmp_path.iterdir()} <= {"home", "train.py"}


def test_an_artifact_that_was_logged_can_be_waited_for(tmp_path: Path) -> None:
    code = """
    import pathlib, wandb
    run = wandb.init(project="p", name="one")
    pathlib.Path("m.pt").write_text("x")
    artifact = wandb.Artifact("model", type="model")
    artifact.add_file("m.pt")
    run.log_artifact(artifact)
    assert artifact.wait(timeout=5) is artifact and isinstance(artifact, wandb.Artifact)
    assert (artifact.version, artifact.name) == ("v0", "model"), artifact.name
    run.log_artifact(artifact).wait()
    """

    output = captured(tmp_path, code)

    assert re.search(r"wandb.run.log_artifact +2\b", output)


@pytest.mark.parametrize(
    "arguments",
    [
        "mode='ofline'",
        "resume='bogus'",
        "fork_from='a'",
        "id='d', resume_from='c?_step=3'",
    ],
)
def test_arguments_that_wandb_refuses_are_refused_before_anything_is_recorded(
    tmp_path: Path, arguments: str
) -> None:
    code = f"""
    import wandb
    try:
        wandb.init(project="p", {arguments})
    except Exception as error:
        print(type(error).__name__)
    """

    output = captured(tmp_path, code)

    assert output.splitlines()[0] == "ValidationError"
    assert run_folders(runs(tmp_path)) == []
