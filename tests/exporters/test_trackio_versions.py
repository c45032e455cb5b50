from __future__ import annotations

import logging
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from otel_bridge.errors import BlockedError
from otel_bridge_trackio.versions import require_supported

INSTALL = "pip install 'otel-bridge[trackio]'"


@pytest.mark.parametrize("found", ["0.43.0", "0.43.7rc1"])
def test_the_version_that_was_tried_is_taken_without_a_word(found: str, caplog: pytest.LogCaptureFixture) -> None:
    require_supported(found)

    assert caplog.records == []


@pytest.mark.parametrize("found", ["0.44.0", "1.0.0.dev0"])
def test_a_newer_one_is_taken_and_said(found: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        require_supported(found)

    assert caplog.messages == [f"Trackio {found} is newer than the one tried (0.43); if it fails: {INSTALL}"]


@pytest.mark.parametrize("found", ["0.42.9", "0.9.1", "", "unknown"])
def test_one_too_old_blocks_with_the_command_that_installs_another(found: str) -> None:
    with pytest.raises(BlockedError, match=r"too old, expected 0\.43") as raised:
        require_supported(found)

    assert raised.value.help == INSTALL


KNOWN = "project, run, metrics_list, steps=None, timestamps=None, config=None, log_ids=None, space_id=None, run_id=None"
OPEN = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from otel_bridge.errors import BlockedError
    from otel_bridge.testing import MemoryTable, samples
    from otel_bridge_trackio import exporter
    where = Path(sys.argv[1])
    try:
        exporter.open(samples.run_info(where), exporter.settings({"TRACKIO_DIR": str(where)}, where), MemoryTable())
    except BlockedError as exc:
        print(exc, "|", exc.help)
    """
)


@pytest.mark.parametrize(
    ("version", "arguments", "said"),
    [
        ("0.44.0", KNOWN.replace(", run_id=None", ""), "than 0.43 has: got an unexpected keyword argument 'run_id' | "),
        ("0.44.0", KNOWN.replace("run,", "run, bucket,"), "than 0.43 has: missing a required argument: 'bucket' | "),
        ("0.42.0", KNOWN, "Trackio 0.42.0 is too old, expected 0.43 | "),
        ("0.44.0", KNOWN, "another SQLiteStorage.get_log_count than 0.43 has: "),
        ("0.44.0", None, "than 0.43 has: type object 'SQLiteStorage' has no attribute 'bulk_log' | "),
    ],
)
def test_a_trackio_whose_call_is_not_the_one_we_know_blocks_before_anything_is_written(
    tmp_path: Path, version: str, arguments: str | None, said: str
) -> None:
    package = tmp_path / "trackio"
    package.mkdir()
    body = (
        "    pass"
        if arguments is None
        else f"    def bulk_log({arguments}): ...\n    bulk_log = staticmethod(bulk_log)"
    )
    (package / "__init__.py").write_text(f"__version__ = {version!r}\n")
    (package / "utils.py").write_text(f"TRACKIO_DIR = {str(tmp_path)!r}\n")
    (package / "sqlite_storage.py").write_text(f"class SQLiteStorage:\n{body}\n")
    path = ":".join([str(tmp_path), *(one for one in sys.path if one)])

    done = subprocess.run(
        [sys.executable, "-c", OPEN, str(tmp_path)],
        cwd=tmp_path, check=False, capture_output=True, text=True, env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin"},
    )  # fmt: skip

    assert said in done.stdout, done.stderr
    assert done.stdout.endswith(f"| {INSTALL}\n")
