"""Fake of ``skyrl.train.generators.base``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class TrajectoryID:
    instance_id: str
    repetition_id: int

    def to_string(self):
        return f"{self.instance_id}_{self.repetition_id}"
