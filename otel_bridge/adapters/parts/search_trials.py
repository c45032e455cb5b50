"""Names the runs of ``Trainer.hyperparameter_search()``, one for each trial, as transformers' callback of W&B does."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from otel_bridge.adapters.parts.framework_run import RunNames


class SearchTrials:
    """Counts the trials of one callback, and gives each a run of its own. For the thread that trains."""

    def __init__(self) -> None:
        self._mark = ""
        self._number = 0

    def next(self) -> None:
        """Begin the next trial."""
        self._number += 1

    def names(self, names: RunNames, args: Any, state: Any) -> RunNames:
        """Return the names of the present trial's run; its id is new, because names of trials recur in every search.

        A trial without a name of its own (``hp_name``) has a number. An ``id`` that the user gave
        the callback would join all trials in one run, so it does not count.

        Args:
            names: Names of a run outside a search.
            args: Training arguments; ``run_name``, else ``output_dir``, is the group of the trials.
            state: State of the trainer; its ``trial_name`` comes from the argument ``hp_name`` of the search.
        """
        from otel_bridge.records import run_id_of  # noqa: PLC0415  # only programs that record pay for it

        # From the kernel, so that the program's seeded generators are left alone.
        self._mark = self._mark or os.urandom(8).hex()
        group = names.name or str(getattr(args, "output_dir", None) or "search")
        return replace(
            names,
            name=getattr(state, "trial_name", None)
            or f"{names.name or 'trial'}-{self._number}",
            arguments={
                "group": group,
                **names.arguments,
                "id": run_id_of(self._mark, str(self._number)),
            },
        )
