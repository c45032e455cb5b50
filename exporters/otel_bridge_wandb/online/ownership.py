"""Decides whether the W&B run at the server belongs to this run folder, and whether it may be opened.

A run belongs to the folder once an ``init()`` of its bridge has succeeded. An ``init()`` that was
killed or timed out may have created the run too. So the attempt is stored before ``init()``, with
the number of lines at the server. A run that has grown since then has another writer.
"""

from __future__ import annotations

from otel_bridge.errors import BlockedError
from otel_bridge.exporter import NEW_RUN_HINT, WriterMemory
from otel_bridge_wandb.online.line_ledger import announced_before
from otel_bridge_wandb.online.store import OTHER_RUN_HELP, other_writers
from otel_bridge_wandb.online.uploads import ServerRun

_OPENED = "online/opened"
_OPENING = "online/opening"
_ABSENT = -1
"""Line count of a run that did not exist."""
_NEVER_HELP = (
    f"give the job another id (WANDB_RUN_ID; {NEW_RUN_HINT}), or start it again with WANDB_RESUME=allow "
    '(resume="allow" in a captured program)'
)
_MUST_HELP = "correct WANDB_RUN_ID, WANDB_PROJECT and WANDB_ENTITY, or start the job again with WANDB_RESUME=allow"


class RunOwnership:
    """Compares the memory of a destination with the run at the server. For one thread.

    Args:
        memory: Memory of this destination.
        existing: The run as the server has it now; ``None`` when it does not exist.
        assigned: Whether the server assigned the run to this job, as a sweep's trial: it then made
            the run itself.
    """

    def __init__(
        self,
        memory: WriterMemory,
        existing: ServerRun | None,
        *,
        assigned: bool = False,
    ) -> None:
        self._memory = memory
        self._found = existing
        self._assigned = assigned
        self._opened = _number(memory.get(_OPENED))
        self._opening = _number(memory.get(_OPENING))

    @property
    def exists(self) -> bool:
        """Return whether the server has the run."""
        return self._found is not None

    @property
    def first(self) -> bool:
        """Return whether no ``init()`` of this folder has succeeded yet."""
        return self._opened is None

    @property
    def server_lines(self) -> int:
        """Return how many lines the server has; 0 without a run."""
        return 0 if self._found is None else self._found.lines

    @property
    def own_lines(self) -> int:
        """Return how many lines the run may have by the bridges of this folder, and by others before them.

        Announced lines count: they may have arrived just before a kill. 0 before the first opening.
        """
        return max(self._opened or 0, announced_before(self._memory))

    @property
    def owned(self) -> bool:
        """Return whether this folder has opened the run, or may without a second writer.

        It may when it has tried to and no other process wrote since, or when the run was assigned
        and has no line.
        """
        if self._opened is not None or (
            self._assigned and self._found is not None and self._found.lines == 0
        ):
            return True
        existing = self._found
        opening = self._opening
        return (
            existing is not None
            and opening is not None
            and existing.lines <= max(opening, 0)
        )

    def require_allowed(self, run_id: str, resume: str) -> None:
        """Check WANDB_RESUME.

        Wandb itself cannot, because it does not know which runs belong to this folder.

        Raises:
            BlockedError: *resume* forbids to continue the run, or requires a run that does not
                exist.
        """
        if resume == "must" and self._found is None:
            raise BlockedError(
                f"W&B: WANDB_RESUME=must, but there is no run {run_id}", help=_MUST_HELP
            )
        # A run of this folder goes on after a restart: "never" is about the runs of others.
        if resume == "never" and self._found is not None and not self.owned:
            raise BlockedError(
                f"W&B: WANDB_RESUME=never, but run {run_id} exists and this job did not create it",
                help=_NEVER_HELP,
            )

    def refuse_other_writer(self, run_id: str) -> None:
        """Check that the run, if it is running, has no other writer than the former bridge of this folder.

        Two writers of one run number their lines alike, and W&B keeps one of each number.

        Raises:
            BlockedError: Another process writes it, or has written lines since this folder's last
                bridge.
        """
        # A run that ended has no other writer. W&B shows one whose writer died as crashed after
        # minutes.
        if self._found is None or self._found.state != "running":
            return
        if not self.owned:
            raise BlockedError(
                f"W&B: run {run_id} is being written by another process, and two writers of one run lose rows. If that "
                "one is dead, W&B marks the run crashed after some minutes and this one goes on",
                help=OTHER_RUN_HELP,
            )
        known_lines = max(self.own_lines, self._opening or 0)
        if self._found.lines > known_lines:
            raise other_writers(self._found.lines - known_lines)

    def opening(self) -> None:
        """Note that ``init()`` is about to be called.

        Only until the first success: from then on the run belongs to this folder for good.
        """
        if self._opened is None:
            self._memory.put(
                _OPENING, str(self._found.lines if self._found else _ABSENT).encode()
            )

    def refused(self) -> None:
        """Note that ``init()`` was refused, so that nothing was created.

        An attempt before it may have created it.
        """
        if self._opened is None and self._opening is None:
            self._memory.delete(_OPENING)
        elif self._opened is None:
            self._memory.put(_OPENING, str(self._opening).encode())

    def opened(self, line_count: int) -> None:
        """Note that ``init()`` has succeeded, with *line_count* lines at the server."""
        self._memory.put(_OPENED, str(line_count).encode())
        self._memory.delete(_OPENING)


def _number(stored: bytes | None) -> int | None:
    if stored is None:
        return None
    return int(stored)
