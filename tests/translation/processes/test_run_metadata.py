from __future__ import annotations

from otel_bridge.translation.decode.resources import producer_of
from otel_bridge.translation.processes.run_metadata import GIVEN, KEY, RunMetadata
from support.otlp.memory_state import MemoryState


def test_secrets_in_what_a_producer_without_our_emitter_writes_about_the_run_are_redacted() -> (
    None
):
    written, shown = "key sk-proj-" + "a1B2" * 12, "key [redacted]"
    state = MemoryState()

    RunMetadata(state, "r1").mine(
        producer_of(
            {
                "rl.run.id": "r1",
                "rl.run.notes": written,
                "rl.run.group": written,
                "rl.run.tags": [written, "a"],
                "rl.run.job_type": written,
                "rl.wandb.notes": written,
                "rl.wandb.run_id": "w1",
            }
        )
    )

    stored = dict(state.get(KEY) or {})
    assert {
        fact: stored[fact]
        for fact in ("notes", "group", "tags", "job_type", "identity")
    } == {
        "notes": shown,
        "group": shown,
        "tags": [shown, "a"],
        "job_type": shown,
        "identity": {"rl.wandb.notes": shown, "rl.wandb.run_id": "w1"},
    }


def test_a_mark_of_a_generated_name_that_is_a_list_does_not_count() -> None:
    state = MemoryState()

    RunMetadata(state, "r1").mine(
        producer_of(
            {
                "rl.run.id": "r1",
                "rl.project": "p",
                "rl.project.generated": ["true"],
            }
        )
    )

    assert dict(state.get(KEY) or {})["sources"]["project"] == GIVEN


def test_the_id_is_that_of_the_run_that_is_translated_and_not_a_stored_one() -> None:
    state = MemoryState()
    state.set(KEY, {"id": "old", "name": "n"})

    RunMetadata(state, "r1").mine(producer_of({"rl.run.id": "r1"}))

    assert dict(state.get(KEY) or {})["id"] == "r1"
