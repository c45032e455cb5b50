from __future__ import annotations

from pathlib import Path

from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_bridge.emit.config.identity import identify
from otel_bridge.emit.config.resource import encode_resource
from otel_bridge.emit.config.run_request import RunRequest
from support.trainers.emit_samples import any_value


def resource_of(
    asked: RunRequest, env: dict[str, str], *, forked: bool = False
) -> dict[str, object]:
    packed = encode_resource(
        identify(asked, env, Path("/home/ada/gsm8k")), env, "1a2b", forked=forked
    )
    parsed = Resource.FromString(packed)
    assert parsed.SerializeToString() == packed
    return {pair.key: any_value(pair.value) for pair in parsed.attributes}


def test_the_trackers_identity_is_taken_along_and_no_credential() -> None:
    env = {
        "WANDB_RUN_ID": "w1",
        "WANDB_ENTITY": "lab",
        "WANDB_PROJECT": "proj",
        "WANDB_RUN_GROUP": "sweep",
        "WANDB_TAGS": "a,b",
        "WANDB_NOTES": "why",
        "WANDB_JOB_TYPE": "train",
        "WANDB_RESUME": "must",
        "WANDB_SWEEP_ID": "s1",
        "MLFLOW_RUN_ID": "m1",
        "MLFLOW_EXPERIMENT_NAME": "exp",
        "TRACKIO_PROJECT": "t",
        "TRACKIO_SPACE_ID": "me/space",
        "WANDB_API_KEY": "key",
        "MLFLOW_TRACKING_TOKEN": "token",
        "HF_TOKEN": "hf",
    }

    seen = resource_of(RunRequest(project="p", name="n"), env)

    assert {
        key: value
        for key, value in seen.items()
        if key.startswith(("rl.wandb", "rl.mlflow", "rl.trackio"))
    } == {
        "rl.wandb.run_id": "w1",
        "rl.wandb.entity": "lab",
        "rl.wandb.project": "proj",
        "rl.wandb.group": "sweep",
        "rl.wandb.tags": "a,b",
        "rl.wandb.notes": "why",
        "rl.wandb.job_type": "train",
        "rl.wandb.resume": "must",
        "rl.wandb.sweep_id": "s1",
        "rl.mlflow.run_id": "m1",
        "rl.mlflow.experiment": "exp",
        "rl.trackio.project": "t",
        "rl.trackio.space": "me/space",
    }
    assert not {"key", "token", "hf"} & {str(value) for value in seen.values()}


def test_secrets_in_what_a_person_writes_about_a_run_are_redacted_and_names_and_ids_stay() -> (
    None
):
    secret, shown = "sk-proj-" + "a1B2" * 12, "key [redacted]"
    written = f"key {secret}"
    env = dict.fromkeys(
        ("WANDB_RUN_GROUP", "WANDB_TAGS", "WANDB_NOTES", "WANDB_JOB_TYPE"), written
    )
    asked = RunRequest(
        name="n", group=written, tags=(written, "a"), notes=written, job_type=written
    )

    seen = resource_of(asked, {**env, "WANDB_RUN_ID": "w1"})

    assert {
        key: value
        for key, value in seen.items()
        if key.startswith(("rl.run.", "rl.wandb."))
    } == {
        "rl.run.id": seen["rl.run.id"],
        "rl.run.name": "n",
        "rl.run.group": shown,
        "rl.run.tags": [shown, "a"],
        "rl.run.notes": shown,
        "rl.run.job_type": shown,
        "rl.wandb.run_id": "w1",
        "rl.wandb.group": shown,
        "rl.wandb.tags": shown,
        "rl.wandb.notes": shown,
        "rl.wandb.job_type": shown,
    }


def test_an_entity_given_to_init_goes_before_the_environment() -> None:
    seen = resource_of(RunRequest(name="n", entity="mine"), {"WANDB_ENTITY": "theirs"})

    assert seen["rl.wandb.entity"] == "mine"


def test_how_to_resume_given_to_init_goes_before_the_environment() -> None:
    seen = resource_of(RunRequest(name="n", resume="never"), {"WANDB_RESUME": "allow"})

    assert seen["rl.wandb.resume"] == "never"


def test_a_forked_child_says_so() -> None:
    assert resource_of(RunRequest(name="n"), {}, forked=True)["rl.forked"] is True
    assert "rl.forked" not in resource_of(RunRequest(name="n"), {})


def test_other_resource_attributes_are_kept() -> None:
    seen = resource_of(
        RunRequest(name="n"),
        {"OTEL_RESOURCE_ATTRIBUTES": "service.name=me,deployment=prod"},
    )

    assert (seen["service.name"], seen["deployment"]) == ("me", "prod")


def test_the_number_of_the_start_is_reported_where_the_environment_knows_it() -> None:
    known = [
        {"OTEL_BRIDGE_ATTEMPT": "4", "TORCHELASTIC_RESTART_COUNT": "1"},
        {"TORCHELASTIC_RESTART_COUNT": "0", "SLURM_RESTART_COUNT": "7"},
        {"SLURM_RESTART_COUNT": "2"},
        {},
    ]

    assert [
        resource_of(RunRequest(name="n"), env).get("rl.attempt") for env in known
    ] == [
        4,
        1,
        3,
        None,
    ]
