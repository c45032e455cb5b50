"""What others wrote is shown without control characters and without secrets."""

from __future__ import annotations

import json

import pytest

from otel_bridge.journal.report import report_from
from otel_bridge.text.printable import all_printable, printable, printable_json, shown

CLIPBOARD = "\x1b]52;c;ZXZpbA==\x07"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (CLIPBOARD, r"\x1b]52;c;ZXZpbA==\x07"),
        ("a\x9b31mb", r"a\x9b31mb"),  # CSI as a C1 control
        (
            "user\u202eexe.txt\u2066",
            r"user\u202eexe.txt\u2066",
        ),  # bidirectional overrides
        ("one\r\ntwo\x00", r"one\r\ntwo\x00"),
        ("schön ✓ 数学", "schön ✓ 数学"),
    ],
)
def test_what_a_terminal_acts_on_is_written_out(given: str, expected: str) -> None:
    assert printable(given) == expected


def test_lines_stay_lines_and_secrets_go() -> None:
    assert shown(f"one\nhttps://me:hunter2@host/x {CLIPBOARD}") == (
        "one\nhttps://[redacted]@host/x \\x1b]52;c;ZXZpbA==\\x07"
    )


def test_json_stays_the_same_json() -> None:
    said = {"name": f"a{CLIPBOARD}\x9b\u202e", "emoji": "\U0001f600"}
    text = json.dumps(said, ensure_ascii=False)

    assert printable_json(text).isprintable()
    assert json.loads(printable_json(text)) == said


def test_a_report_is_read_without_control_characters_in_names_keys_and_reasons() -> (
    None
):
    raw = {
        "project": f"p{CLIPBOARD}", "name": "n\x9b", "steps": {"a\x1b/step": 3},
        "exporters": {"wandb": {"reason": f"no{CLIPBOARD}"}},
    }  # fmt: skip

    report = report_from(raw)

    assert report is not None
    assert (report.project, report.name) == (r"p\x1b]52;c;ZXZpbA==\x07", r"n\x9b")
    assert report.steps == {r"a\x1b/step": 3}
    assert report.exporters["wandb"].reason == r"no\x1b]52;c;ZXZpbA==\x07"
    assert all_printable([1, None, {"x\x1b": True}]) == [1, None, {r"x\x1b": True}]
