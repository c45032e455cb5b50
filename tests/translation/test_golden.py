from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.otlp.golden_cases import FOLDER, cases, play, written

FILES = sorted(FOLDER.glob("*.json"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_went_in_comes_out_as_written_down(file: Path) -> None:
    golden = json.loads(file.read_text(encoding="utf-8"))

    found = play(golden["in"])

    assert written(found) == written(golden["out"]), (
        "if the difference is meant: PYTHONPATH=tests .venv/bin/python -m support.otlp.golden_cases "
        "writes tests/golden anew; commit the files"
    )


def test_every_case_is_written_down() -> None:
    assert [file.stem for file in FILES] == sorted(cases())
