"""The contract every `RunWriter` must pass, ours and a third party's: subclass `WriterContract` in pytest.

.. code-block:: python

    from otel_bridge.testing.contract import WriterContract

    class TestMyTracker(WriterContract):
        target = "my_tracker:exporter"             # where a child process finds the exporter; for real kills
        keeps_status = False                       # my tracker has no status of a run

        @pytest.fixture
        def exporter(self): return my_tracker.exporter

        @pytest.fixture
        def environment(self, tmp_path): return {"MY_TRACKER_DIR": str(tmp_path / "store")}

        @pytest.fixture
        def read_back(self, environment):          # the tracker's own API, never the writer's memory
            def read(run: RunInfo) -> Contents: ...
            return read

What a tracker cannot show is switched off by the class attributes; everything else must hold. Each
test has a run of its own (fixture `run`), so one store may serve them all. The tracker is read
after `RunWriter.close`.

A writer whose `RunWriter.durable` shows right after open what the tracker holds is only given what
lies behind it, as the bridge does; one that cannot tell (``None``) may be given everything again.
"""

from __future__ import annotations

from otel_bridge.testing.contract.compare import same, same_scalars, written
from otel_bridge.testing.contract.fixtures import ContractFixtures, Open, ReadBack
from otel_bridge.testing.contract.writer import WriterContract

__all__ = [
    "ContractFixtures",
    "Open",
    "ReadBack",
    "WriterContract",
    "same",
    "same_scalars",
    "written",
]
