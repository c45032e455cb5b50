from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from otel_bridge.errors import BlockedError
from otel_bridge_mlflow.connection import require_version


@pytest.mark.parametrize("found", ["3.10.0", "3.17.2", "3.99.1.dev0"])
def test_a_version_in_the_range_is_taken(found: str) -> None:
    require_version(found)


@pytest.mark.parametrize("found", ["2.22.1", "3.9.4", "4.0.0", "4.1.0rc1", "unknown"])
def test_one_too_old_or_too_new_blocks_with_the_command_that_installs_another(found: str) -> None:
    with pytest.raises(BlockedError, match=found) as raised:
        require_version(found)

    assert raised.value.help == "pip install 'otel-bridge[mlflow]'"


def test_a_package_that_cannot_be_imported_blocks_the_writer_and_raises_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "mlflow" / "__init__.py").write_text("__version__ = '3.12.0'\n")
    code = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from otel_bridge.errors import BlockedError
        from otel_bridge.testing import MemoryTable, samples
        from otel_bridge_mlflow import exporter
        where = Path(sys.argv[1])
        settings = exporter.settings({}, where)
        try:
            exporter.open(samples.run_info(where), settings, MemoryTable())
        except BlockedError as exc:
            print(exc, "|", exc.help)
        """
    )

    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=tmp_path, check=False, capture_output=True, text=True,
        env={"PYTHONPATH": f"{tmp_path}:{':'.join(path for path in sys.path if path)}", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip

    assert done.stdout.startswith("MLflow cannot be imported: "), done.stderr
    assert done.stdout.endswith("| pip install 'otel-bridge[mlflow]'\n")
