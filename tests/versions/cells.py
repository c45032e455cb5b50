"""The versions of trackers that otel-bridge is tested with: a table of cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

PACKAGES: Final = ("pytest>=8.2,<10", "pytest-timeout", "hypothesis", "numpy")
"""What the tests need beside otel-bridge and the tracker."""
CONTRACT: Final[Mapping[str, Sequence[str]]] = {
    "trackio": ("tests/exporters/trackio/test_contract.py",),
    "wandb": ("tests/exporters/wandb/test_contract_offline.py",),
    "mlflow": ("tests/exporters/mlflow/test_contract.py",),
}
MORE: Final[Mapping[str, Sequence[str]]] = {
    "trackio": (
        *(
            f"tests/exporters/trackio/test_{name}.py"
            for name in ("writer", "inbox", "remote", "abilities")
        ),
        "tests/exporters/test_media.py",
        "tests/capture/test_trackio.py",
    ),
    "wandb": (
        *(
            f"tests/exporters/wandb/{name}.py"
            for name in ("online/test_contract", "test_offline", "shared/test_together")
        ),
        "tests/exporters/test_media.py",
        "tests/capture/test_run_identity.py",
        *(
            f"tests/capture/wandb/test_{name}.py"
            for name in ("calls", "runs", "processes", "step_metrics", "summary")
        ),
    ),
    "mlflow": (
        *(
            f"tests/exporters/mlflow/test_{name}.py"
            for name in ("rows", "runs", "params", "traces", "rewards")
        ),
        "tests/exporters/test_media.py",
    ),
}
"""Suites of each tracker that run when all cells do."""
CONFORMANCE: Final = {
    "trackio": "TestTrackio",
    "wandb": "TestWandbOffline",
    "mlflow": "TestMlflow and not Server",
}
SETTINGS: Final[Mapping[str, Mapping[str, str]]] = {
    "trackio": {"TRACKIO_DIR": "store"},
    "wandb": {"WANDB_MODE": "offline", "WANDB_DIR": "store"},
    "mlflow": {"MLFLOW_TRACKING_URI": "sqlite:///store.db"},
}
"""Where the abilities are probed; relative to a folder of its own."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One version of one tracker.

    Attributes:
        tracker: Extra and exporter.
        version: What follows the package's name in a requirement; empty: the newest.
        beside: Other requirements, of what that version cannot use when it is newer.
        why: Who has this version.
        prerelease: Versions before a release count too.
    """

    tracker: str
    version: str = ""
    beside: tuple[str, ...] = ()
    why: str = ""
    prerelease: bool = False

    @property
    def name(self) -> str:
        """Name of the cell."""
        version = self.version.removeprefix("==") or (
            "pre" if self.prerelease else "newest"
        )
        return f"{self.tracker}-{version}"


_HUB: Final = ("huggingface_hub<1.27",)
_ALCHEMY: Final = ("sqlalchemy<2.1",)
CELLS: Final = (
    Cell("trackio", "==0.25.1", _HUB, "the oldest"),
    Cell("trackio", "==0.30.4", _HUB),
    Cell("trackio", "==0.36.0", _HUB, "the last without spans"),
    Cell("trackio", "==0.37.1", _HUB, "the first with spans"),
    Cell("trackio", "==0.40.0"),
    Cell("trackio", why="the newest"),
    Cell("trackio", why="the newest, before its release", prerelease=True),
    Cell("wandb", "==0.23.1", why="the oldest; open-instruct"),
    Cell("wandb", "==0.26.1", why="AReaL"),
    Cell("wandb", "==0.27.2", why="verl"),
    Cell("wandb", "==0.28.1", why="SkyRL, NeMo-RL"),
    Cell("wandb", why="the newest"),
    Cell("wandb", why="the newest, before its release", prerelease=True),
    Cell("mlflow", "==3.7.0", _ALCHEMY, "the oldest"),
    Cell("mlflow", "==3.11.1", _ALCHEMY, "AReaL"),
    Cell("mlflow", "==3.15.1", _ALCHEMY, "SkyRL, NeMo-RL"),
    Cell("mlflow", why="the newest"),
    Cell("mlflow", why="the newest, before its release", prerelease=True),
)


def chosen(names: str) -> list[Cell]:
    """Return the cells of *names*: ``all``, ``floor``, ``floor-newest``, a tracker, or cells, separated by commas.

    Raises:
        SystemExit: A name is not known.
    """
    found: list[Cell] = []
    for name in names.split(","):
        cells = [one for one in CELLS if name in {"all", one.tracker, one.name}]
        if name == "floor-newest":
            cells = [
                one
                for one in CELLS
                if one.why.startswith("the oldest") or one.why == "the newest"
            ]
        if name == "floor":
            cells = [one for one in CELLS if one.why.startswith("the oldest")]
        if not cells:
            raise SystemExit(f"{name!r}: no cell is called so; choose from all, floor, floor-newest, "
                             f"{', '.join(one.name for one in CELLS)}")  # fmt: skip
        found += [one for one in cells if one not in found]
    return found
