"""Whether otel-bridge installs beside the pins of training frameworks: asks the resolver, installs nothing.

``frameworks/<name>.txt`` holds the pins of a framework's own lock, versions only. Run: ``python -m versions.resolve``.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

EXTRAS = ("", "wandb", "mlflow", "trackio")
FRAMEWORKS = Path(__file__).with_name("frameworks")
PYTHON = {"nemo-rl": "3.13"}
"""Of a framework that wants another than 3.12."""
_OLD = "its OpenTelemetry 1.26 and protobuf 4.25 are older than every opentelemetry-proto that otel-bridge supports"
EXPECTED = {
    **{("skyrl-agent", extra): _OLD for extra in EXTRAS},
    ("areal", "trackio"): "its Trackio 0.22 has no traces",
    ("axolotl", "trackio"): "its Trackio 0.19 has no traces",
    ("open-instruct", "trackio"): "its own pillow and every Trackio exclude each other",
}
"""Framework and extra to why they cannot stand side by side."""


def frameworks() -> list[str]:
    """The frameworks by name."""
    return sorted(path.stem for path in FRAMEWORKS.glob("*.txt"))


def resolves(framework: str, *extras: str) -> str:
    """Return why otel-bridge with *extras* does not install beside *framework*, empty when it does."""
    command = [
        sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header",
        "--python-version", PYTHON.get(framework, "3.12"), "--constraint", str(FRAMEWORKS / f"{framework}.txt"),
        *(f"--extra={extra}" for extra in extras if extra), str(FRAMEWORKS.parents[2] / "pyproject.toml"),
    ]  # fmt: skip
    # From the cache it takes a second; only "no" may be for want of something there.
    for more in (["--offline"], []):
        done = subprocess.run(
            [*command, *more], check=False, capture_output=True, text=True
        )
        if done.returncode == 0:
            return ""
    return " ".join(done.stderr.split())[:600] or f"exit code {done.returncode}"


def beside(framework: str) -> dict[tuple[str, str], str]:
    """Return for each extra why it does not install beside *framework*; all together are asked first."""
    if not resolves(framework, *EXTRAS):
        return {(framework, extra): "" for extra in EXTRAS}
    found = {
        (framework, extra): resolves(framework, extra) for extra in EXTRAS if extra
    }
    core = "" if "" in found.values() else resolves(framework)
    return {(framework, ""): core, **found}


def resolve_all() -> dict[tuple[str, str], str]:
    """Return for each framework and extra why it does not resolve, empty where it does."""
    with ThreadPoolExecutor(4) as pool:
        return {
            pair: why
            for found in pool.map(beside, frameworks())
            for pair, why in found.items()
        }


def table(found: dict[tuple[str, str], str]) -> list[str]:
    """Return the lines of a table: frameworks down, extras across."""
    lines = [
        "| framework | "
        + " | ".join(f"`[{extra}]`" if extra else "core" for extra in EXTRAS)
        + " |"
    ]
    lines.append("|---" * (len(EXTRAS) + 1) + "|")
    for framework in frameworks():
        cells = ("no" if found[framework, extra] else "yes" for extra in EXTRAS)
        lines.append(f"| {framework} | " + " | ".join(cells) + " |")
    return lines


def unexpected(found: dict[tuple[str, str], str]) -> list[str]:
    """Return a line for each pair that does not resolve and should, or does and is said not to."""
    lines = [
        f"{framework} [{extra or 'core'}]: {why}"
        for (framework, extra), why in found.items()
        if why and (framework, extra) not in EXPECTED
    ]
    resolved = [
        f"{one[0]} [{one[1] or 'core'}] resolves now: take it out of EXPECTED"
        for one in EXPECTED
        if not found[one]
    ]
    return lines + resolved


def main() -> int:
    """Print the table, and what is not as expected; return 1 when something is not."""
    found = resolve_all()
    print(*table(found), sep="\n")
    wrong = unexpected(found)
    print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
