"""Run the cells: each a fresh environment with one version of one tracker, its contract suite and the conformance job.

Run as ``python -m versions.run CELLS``. With ``all`` the page docs/versions.md is written from the results.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from versions import resolve
from versions.cells import CONFORMANCE, CONTRACT, MORE, PACKAGES, SETTINGS, Cell, chosen

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "versions.md"
AT_A_TIME: Final = 2
_TIMEOUT_S: Final = 900
_COUNTS: Final = re.compile(r"(\d+) (passed|failed|skipped|errors?)")
_PROBE: Final = """
import json, sys
from importlib.metadata import version
from pathlib import Path
from otel_bridge.exporter import load
name, env = sys.argv[1], json.loads(sys.argv[2])
exporter = load(name)
less = exporter.probe(exporter.read_settings(env, Path.cwd())) if exporter.probe else ()
print(json.dumps([version(name), list(less)]))
"""


_PAGE: Final = """\
# Versions of trackers

`otel-bridge doctor` shows what your versions lack. When its writer opens, an exporter checks the calls that it uses, so
other versions with these calls work too. `make test-versions` generates this page: each line is a
fresh environment in which the suites of the exporter run and read back through the tracker's own API.

| tracker | version | installed with | who has it | tests passed | lacks |
|---|---|---|---|---|---|
{rows}

## Together with frameworks

The table shows whether `otel-bridge` installs into an environment with the pins of a framework's own lock, of August
2026 (AReaL: May). If it does not, run the bridge in [a separate environment](other-environments.md).

{table}

{reasons}
"""


@dataclass
class Result:
    """What became of a cell.

    Attributes:
        version: The version that was installed.
        degraded: What its exporter says of it.
        counts: passed, failed, skipped.
        failed: The tests that failed, or why none ran.
        seconds: How long it took.
    """

    cell: Cell
    version: str = "-"
    degraded: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def line(self) -> str:
        """The result in one line."""
        counts = (
            ", ".join(f"{count} {what}" for what, count in self.counts.items())
            or "no test ran"
        )
        return f"{self.cell.name} ({self.version}): {counts}, {self.seconds:.0f} s"


def run(cell: Cell, *, whole: bool) -> Result:
    """Make the environment of *cell*, probe its tracker and run its suites."""
    result, began = Result(cell), time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"versions-{cell.name}-") as folder:
        try:
            _run(result, Path(folder), whole=whole)
        except (subprocess.SubprocessError, OSError, ValueError) as exc:
            output = getattr(exc, "stderr", None) or getattr(exc, "stdout", None) or ""
            result.failed.append(f"{exc} {output}"[-2000:])
    result.seconds = time.monotonic() - began
    print(result.line, *result.failed, sep="\n  ", flush=True)
    return result


def _run(result: Result, folder: Path, *, whole: bool) -> None:
    cell = result.cell
    python = folder / "env" / "bin" / "python"
    uv = [sys.executable, "-m", "uv"]
    _call(
        [*uv, "venv", "--quiet", "--python", sys.executable, str(folder / "env")],
        folder,
    )
    early = ["--prerelease", "allow"] if cell.prerelease else []
    _call(
        [*uv, "pip", "install", "--quiet", "--python", str(python), *early, "--editable", str(ROOT),
         f"{cell.tracker}{cell.version}", *cell.beside, *PACKAGES], folder,
    )  # fmt: skip
    probed = _call(
        [
            str(python),
            "-c",
            _PROBE,
            cell.tracker,
            json.dumps(dict(SETTINGS[cell.tracker])),
        ],
        folder,
    )
    result.version, result.degraded = json.loads(probed.splitlines()[-1])
    suites = [*CONTRACT[cell.tracker], *(MORE[cell.tracker] if whole else ())]
    _suite(result, folder, python, suites)
    _suite(
        result,
        folder,
        python,
        ["tests/conformance/test_trackers.py", "-k", CONFORMANCE[cell.tracker]],
    )


def _suite(result: Result, folder: Path, python: Path, tests: list[str]) -> None:
    command = [
        str(python),
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--basetemp={folder / 'tests'}",
        *tests,
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=_environment(folder),
        check=False,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )
    lines = done.stdout.splitlines()
    for count, what in _COUNTS.findall(lines[-1] if lines else ""):
        result.counts[what] = result.counts.get(what, 0) + int(count)
    failed = [line[:300] for line in lines if line.startswith(("FAILED", "ERROR"))]
    if done.returncode and not failed:
        failed = [
            f"pytest: exit code {done.returncode}: {done.stdout[-1500:]}{done.stderr[-500:]}"
        ]
    result.failed += failed


def _call(command: list[str], folder: Path) -> str:
    return subprocess.run(
        command,
        cwd=folder,
        env=_environment(folder),
        check=True,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    ).stdout


def _environment(folder: Path) -> dict[str, str]:
    """The environment without what this one says of trackers, Python and virtual environments."""
    own = ("WANDB_", "MLFLOW_", "TRACKIO_", "OTEL_", "PYTHON", "VIRTUAL_ENV")
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(own)
    }
    return {**kept, "TMPDIR": str(folder)}


def page(results: list[Result], found: dict[tuple[str, str], str]) -> str:
    """Return docs/versions.md."""
    rows = []
    for one in results:
        cell, total = (
            one.cell,
            sum(count for what, count in one.counts.items() if what != "skipped"),
        )
        passed, less = one.counts.get("passed", 0), "; ".join(one.degraded) or "-"
        beside = ", ".join(f"`{name}`" for name in cell.beside) or "-"
        rows.append(
            f"| {cell.tracker} | {one.version} | {beside} | {cell.why or '-'} | {passed} of {total} | {less} |"
        )
    extras_by_reason: dict[tuple[str, str], list[str]] = {}
    for (framework, extra), reason in resolve.EXPECTED.items():
        extras_by_reason.setdefault((framework, reason), []).append(extra or "core")
    reasons = [
        f"* {name}, {', '.join(extras)}: {reason}."
        for (name, reason), extras in extras_by_reason.items()
    ]
    return _PAGE.format(
        rows="\n".join(rows),
        table="\n".join(resolve.table(found)),
        reasons="\n".join(reasons),
    )


def main(names: str) -> int:
    """Run the cells of *names*; return 1 when a test failed or a framework does not resolve as expected."""
    whole = names == "all"
    found = resolve.resolve_all()
    print(*resolve.table(found), sep="\n", flush=True)
    wrong = resolve.unexpected(found)
    print(*wrong, sep="\n", flush=True)
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        results = list(pool.map(lambda cell: run(cell, whole=whole), chosen(names)))
    print(*(one.line for one in results), sep="\n")
    if whole:
        PAGE.write_text(page(results, found))
    return 1 if wrong or any(one.failed for one in results) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "all"))
