"""The contract as a whole."""

from __future__ import annotations

from otel_bridge.testing.contract.life import LifeContract
from otel_bridge.testing.contract.redelivery import RedeliveryContract
from otel_bridge.testing.contract.rollouts import RolloutContract
from otel_bridge.testing.contract.rows import RowContract


class WriterContract(RowContract, RedeliveryContract, RolloutContract, LifeContract):
    """Tests the whole contract.

    Subclass it with the fixtures `exporter`, `environment` and `read_back`.
    """
