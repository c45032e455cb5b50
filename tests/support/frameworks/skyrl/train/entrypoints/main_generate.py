"""Fake of ``skyrl.train.entrypoints.main_generate``."""

from __future__ import annotations

from skyrl.train.entrypoints.main_base import BasePPOExp


class EvalOnlyEntrypoint(BasePPOExp):
    async def run(self, inference_engine_client):
        results = {"eval/all/avg_score": 0.5}
        self.get_tracker().log(results, step=0, commit=True)
        return results
