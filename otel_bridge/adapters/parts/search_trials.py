"""Names the runs of ``Trainer.hyperparameter_search()``, one for each trial, as transformers' callback of W&B does."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from otel_bridge.adapters.parts.framework_run import RunNames


class SearchTrials:
    """Counts the trials of one callback, and gives each a run of its own. For the thread that trains."""

    def __init__(self) -> None:
        self._number = 0
        self._id = _new_id()

    def next(self) -> None:
        """Begin the next trial."""
        self._number += 1
        self._id = _new_id()

    def names(self, names: RunNames, args: Any, state: Any) -> RunNames:
        """Return the names of the present trial's run; its id is new, because names of trials recur in every search.

        A trial without a name of its own (``hp_name``) has a number. An ``id`` that the user gave
        the callback would join all trials in one run, so it does not count.

        Args:
            names: Names of a run outside a search.
            args: Training arguments; ``run_name``, else ``output_dir``, is the group of the trials.
            state: State of the trainer; its ``trial_name`` comes from the argument ``hp_name`` of the search.
        """
        group = names.name or str(getattr(args, "output_dir", None) or "search")
        return replace(
            names,
            name=getattr(state, "trial_name", None)
            or f"{names.name or 'trial'}-{self._number}",
            arguments={
                "group": group,
                **names.arguments,
                "id": self._id,
            },
        )


def _new_id() -> str:
    # From the kernel, so that the program's seeded generators are left alone.
    return os.urandom(8).hex()
