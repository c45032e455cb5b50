from __future__ import annotations

from pathlib import Path

import pytest

from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.report import Report, write_report
from support.trainers.emit_samples import run_in, seen_in


def reported(base: Path, **fields: str) -> None:
    folder = RunFolder(base, "job-17")
    folder.create()
    write_report(folder, Report(**fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, ("gsm8k", "job-17", ("run_name",))),
        ({"project": "gsm8k", "name": "nice"}, ("gsm8k", "nice", ())),
        ({"project": "other", "name": "nice"}, ("gsm8k", "nice", ())),
        (
            {"project": "gsm8k", "name": "script-1", "generated": "name"},
            ("gsm8k", "script-1", ("run_name",)),
        ),
    ],
    ids=["nothing", "given", "another project", "generated"],
)
def test_a_process_with_the_id_alone_takes_the_name_of_the_folder_s_report(
    tmp_path: Path, fields: dict[str, str], names: tuple[object, ...]
) -> None:
    reported(tmp_path, **fields)

    with run_in(tmp_path, name=None, id="job-17") as run:
        assert (run.project, run.name) == names[:2]

    (seen,) = seen_in(tmp_path)
    assert (seen.header.project, seen.header.run_name, seen.header.generated) == names
    assert seen.resource.get("rl.run.name.generated", False) is bool(names[2])


def test_a_given_name_goes_before_the_known_one(tmp_path: Path) -> None:
    reported(tmp_path, project="gsm8k", name="nice")

    with run_in(tmp_path, name="mine", id="job-17") as run:
        assert run.name == "mine"


def test_a_name_without_an_id_is_a_run_of_its_own(tmp_path: Path) -> None:
    reported(tmp_path, project="gsm8k", name="nice")

    with run_in(tmp_path, name=None) as run:
        assert run.id != "job-17"
        assert run.name != "nice"
