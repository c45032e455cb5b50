"""Which Trackio is written through: what its calls take decides, not its version."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import orjson
import pytest

from otel_bridge.errors import BlockedError
from otel_bridge.testing import MemoryTable, samples
from otel_bridge_trackio import exporter, versions
from otel_bridge_trackio.payload import rollout_trace
from support.trackers.trackio_store import ENVIRONMENT

BULK_LOG = "bulk_log(project, run, metrics_list, steps=None, timestamps=None, config=None, log_ids=None, run_id=None)"
BULK_ALERT = "bulk_alert(project, run, titles, texts, levels, steps, timestamps=None, alert_ids=None, run_id=None)"
READERS = (
    "get_logs(project, run, run_id)",
    "get_log_count(project, run, run_id)",
    "get_run_config(project, run, run_id)",
    "get_project_db_path(project)",
)
GET_TRACES = "get_traces(project, run=None, run_id=None, step=None)"
NEEDED = (BULK_LOG, GET_TRACES, BULK_ALERT, *READERS)
WITH_SPANS = "def __init__(self, messages, metadata=None, spans=None): ..."
WITHOUT_SPANS = "def __init__(self, messages, metadata=None): ..."
AS_TEXT = "Trackio 0.1 shows the spans of a rollout as text in its metadata, as a tree from 0.37"
OPEN = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from otel_bridge.errors import BlockedError
    from otel_bridge.testing import MemoryTable, samples
    from otel_bridge_trackio import exporter
    where, env = Path(sys.argv[1]), dict(pair.split("=", 1) for pair in sys.argv[2:])
    settings = exporter.read_settings({"TRACKIO_DIR": str(where), **env}, where)
    try:
        writer = exporter.open(samples.run_info(where), settings, MemoryTable())
        assert tuple(exporter.probe(settings)) == writer.degraded
        print("opened", *writer.degraded, sep="|")
    except BlockedError as exc:
        print("blocked", exc, exc.help, sep="|")
    print("trackio.sqlite_storage" in sys.modules)
    """
)


def opened(
    folder: Path,
    calls: tuple[str, ...],
    *,
    trace: str = WITH_SPANS,
    begin: str = "",
    version: str = "0.1",
    inbox: bool = False,
) -> list[str]:
    """What comes of opening a writer with a Trackio of *calls*; and whether its store was imported."""
    package = folder / "trackio"
    package.mkdir()
    (package / "__init__.py").write_text(
        f"{begin}\n__version__ = '0.1'\nfrom trackio.trace import Trace\n"
    )
    (package / "trace.py").write_text(f"class Trace:\n    {trace}\n")
    (package / "utils.py").write_text(f"TRACKIO_DIR = {str(folder)!r}\n")
    body = "".join(f"    @staticmethod\n    def {call}: return 0\n" for call in calls)
    (package / "sqlite_storage.py").write_text(
        f"class SQLiteStorage:\n    kind = 'sqlite'\n{body}"
    )
    information = folder / f"trackio-{version}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: trackio\nVersion: {version}\n"
    )
    path = ":".join([str(folder), *(one for one in sys.path if one)])
    mode = ["TRACKIO_STORAGE_MODE=jsonl"] if inbox else []
    done = subprocess.run(
        [sys.executable, "-c", OPEN, str(folder), *mode],
        cwd=folder, check=False, capture_output=True, text=True, env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_version_that_nobody_tried_is_taken_without_a_word_when_its_calls_are_there(
    tmp_path: Path,
) -> None:
    assert opened(tmp_path, (*NEEDED, "validate_project_name(project)")) == [
        "opened",
        "True",
    ]


def test_one_without_spans_and_without_what_can_be_done_without_is_taken_and_said(
    tmp_path: Path,
) -> None:
    same_ids = "Trackio 0.1 gives rollouts of one step the same Trace ID, each its own from 0.26"
    calls = (
        BULK_LOG,
        "get_traces(project, run=None, run_id=None)",
        BULK_ALERT,
        *READERS,
    )

    assert opened(tmp_path, calls, trace=WITHOUT_SPANS) == [
        f"opened|{same_ids}|{AS_TEXT}",
        "True",
    ]


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        (
            (BULK_LOG.replace(", run_id=None", ""), *NEEDED[1:]),
            "another SQLiteStorage.bulk_log: got an unexpected keyword argument 'run_id'",
        ),
        (
            (BULK_LOG.replace("run,", "run, bucket,"), *NEEDED[1:]),
            "another SQLiteStorage.bulk_log: missing a required argument: 'bucket'",
        ),
        (
            (BULK_LOG, "get_traces(project, run=None)", BULK_ALERT, *READERS),
            "another SQLiteStorage.get_traces: got an unexpected keyword argument 'run_id'",
        ),
        (NEEDED[1:], "no SQLiteStorage.bulk_log"),
        ((BULK_LOG, BULK_ALERT, *READERS), "no SQLiteStorage.get_traces"),
        (NEEDED[:-1], "no SQLiteStorage.get_project_db_path"),
    ],
)  # fmt: skip
def test_one_without_a_call_that_is_needed_blocks_before_anything_is_written(
    tmp_path: Path, calls: tuple[str, ...], reason: str
) -> None:
    said = opened(tmp_path, calls)[0]

    assert said == f"blocked|Trackio 0.1 has {reason}|{versions.INSTALL}"


def test_a_trackio_that_cannot_use_the_installed_huggingface_hub_says_what_to_install(
    tmp_path: Path,
) -> None:
    said = opened(
        tmp_path,
        NEEDED,
        begin="from huggingface_hub.hf_api import CommitOperationAddOfYesterday",
    )[0]

    assert said.startswith(
        "blocked|Trackio 0.1 cannot be imported: cannot import name 'CommitOperationAddOfYesterday'"
    )
    assert said.endswith("|pip install 'huggingface_hub<1.31', or 'trackio>=0.38'")


@pytest.mark.parametrize(
    ("version", "less"), [("0.37", ""), ("0.28", f"|{AS_TEXT.replace('0.1', '0.28')}")]
)
def test_the_inbox_is_written_for_a_trackio_that_imports_it_and_none_is_imported_here(
    tmp_path: Path, version: str, less: str
) -> None:
    assert opened(tmp_path, NEEDED, version=version, inbox=True) == [
        f"opened{less}",
        "False",
    ]


def test_a_trackio_without_an_inbox_blocks_a_folder_of_several_machines(
    tmp_path: Path,
) -> None:
    said, imported = opened(tmp_path, NEEDED, version="0.27", inbox=True)

    assert said.startswith(
        "blocked|TRACKIO_DIR is shared over a network, and Trackio 0.27 imports no inbox"
        "|pip install 'trackio>=0.28', or set TRACKIO_DIR"
    )
    assert imported == "False"


@pytest.mark.parametrize(
    ("version", "spans", "less"),
    [
        ("0.25.1", False, 2),
        ("0.26", False, 1),
        ("0.36.9", False, 1),
        ("0.37.0", True, 0),
        ("0.44.0rc1", True, 0),
        ("", False, 2),
    ],
)
def test_a_server_shows_what_its_own_version_can_whatever_is_installed_here(
    version: str, spans: bool, less: int
) -> None:
    found = versions.of_server(version)

    assert (found.spans, len(found.degraded)) == (spans, less)


def test_spans_that_cannot_be_kept_are_text_in_the_metadata_beside_the_users_own_key() -> (
    None
):
    rollout = samples.rollout(1)
    rollout.metadata["spans"] = "mine"

    tree, text = rollout_trace(rollout), rollout_trace(rollout, spans=False)

    assert tree["spans"]
    assert "spans" not in text
    metadata = text["metadata"]
    assert isinstance(metadata, dict)
    assert orjson.loads(str(metadata["spans"])) == tree["spans"]
    assert metadata["metadata.spans"] == "mine"


def test_an_error_of_the_installed_version_while_a_row_is_written_refuses_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_for_a_call_of_tomorrow():
        return subprocess.call_of_tomorrow

    def bulk_log(
        project, run, metrics_list, steps, timestamps, config, log_ids, run_id
    ):
        raise_for_a_call_of_tomorrow()

    run = samples.run_info(tmp_path)
    writer = exporter.open(
        run, exporter.read_settings(ENVIRONMENT, tmp_path), MemoryTable()
    )
    from trackio.sqlite_storage import (
        SQLiteStorage,
    )  # not before: it reads its folder when it is imported

    monkeypatch.setattr(SQLiteStorage, "bulk_log", staticmethod(bulk_log))

    with pytest.raises(BlockedError, match=r"lacks what is called: .*call_of_tomorrow"):
        writer.write_rows(samples.placed([samples.row(1)]))
