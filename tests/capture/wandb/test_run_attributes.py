"""What a captured program reads of its own run: config, tags, name, settings, and the folder of its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.trainers.captured_wandb import captured, captured_config
from support.trainers.command_runs import report_of, runs

pytestmark = pytest.mark.slow


def test_defaults_in_a_file_give_way_to_the_programs_config(tmp_path: Path) -> None:
    (tmp_path / "config-defaults.yaml").write_text(
        "lr: {desc: rate, value: 0.5}\nbatch: {value: 3}\n", "utf-8"
    )
    code = """
    import wandb
    run = wandb.init(project="p", name="e", config={"batch": 4, "left": 1}, config_exclude_keys=["left"])
    assert dict(run.config) == {"lr": 0.5, "batch": 4}, run.config
    wandb.log({"a": 1})
    """

    captured(tmp_path, code)

    assert captured_config(tmp_path) == {"lr": 0.5, "batch": 4}


def test_tags_and_notes_of_the_environment_are_those_that_the_program_sees(
    tmp_path: Path,
) -> None:
    code = """
    import wandb
    run = wandb.init(project="p", name="e")
    print(run.tags, run.notes)
    """

    output = captured(tmp_path, code, WANDB_TAGS="a,b", WANDB_NOTES="why")

    assert output.splitlines()[0] == "('a', 'b') why"


@pytest.mark.long
def test_files_in_the_folder_of_the_run_are_counted_and_its_path_alone_is_not(
    tmp_path: Path,
) -> None:
    code = """
    import os, pathlib, wandb
    run = wandb.init(project="p", name="e")
    assert os.path.isdir(run.dir) and wandb.run.dir == run.dir
    if {writes}:
        pathlib.Path(run.dir, "model.txt").write_text("x")
    """

    first = captured(tmp_path, code.replace("{writes}", "False"))
    second = captured(tmp_path, code.replace("{writes}", "True"))

    assert "run.dir" not in first
    assert "files in wandb.run.dir" in second
    assert "model.txt" in second


def test_a_new_name_is_what_the_program_reads_and_is_counted(tmp_path: Path) -> None:
    code = """
    import wandb
    run = wandb.init(project="p", name="one", tags=["x"])
    run.name, run.notes, wandb.run.tags = "two", "why", ["a"]
    run.tags += ("b",)
    assert (wandb.run.name, run.notes, run.tags) == ("two", "why", ("a", "b")), run.tags
    """

    output = captured(tmp_path, code)

    assert report_of(runs(tmp_path)).drops == {"not_captured": 4}
    assert "wandb.run.name =" in output


def test_the_settings_of_a_run_are_its_own_and_follow_its_name(tmp_path: Path) -> None:
    code = """
    import wandb
    run = wandb.init(project="p", name="one", group="g", tags=["x"])
    run.name = "two"
    shown = run.settings
    found = (shown.run_id, shown.run_name, shown.project, shown.run_group, shown.run_tags, shown.mode, shown._noop)
    assert found == (run.id, "two", "p", "g", ("x",), "online", False), found
    """

    captured(tmp_path, code)


@pytest.mark.long
def test_the_folder_of_a_run_is_kept_and_named_only_when_it_has_files(
    tmp_path: Path,
) -> None:
    code = """
    import pathlib, sys, wandb
    run = wandb.init(project="p", name="e")
    print(run.dir)
    if sys.argv[1:]:
        pathlib.Path(run.dir, "model.txt").write_text("x")
    """
    (tmp_path / "tmp").mkdir()

    empty = captured(tmp_path, code, TMPDIR=str(tmp_path / "tmp")).splitlines()[0]
    full = captured(
        tmp_path, code.replace("sys.argv[1:]", "True"), TMPDIR=str(tmp_path / "tmp")
    )

    kept = full.splitlines()[0]
    assert (Path(empty).exists(), Path(kept, "model.txt").read_text()) == (False, "x")
    assert f"files in wandb.run.dir are not recorded; they are kept in {kept}\n" in full
