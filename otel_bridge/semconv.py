"""Every attribute, event and span name on the wire: ours (``rl.*``), those of others, and the GenAI conventions.

Source: the wire format of the design; OpenTelemetry GenAI semantic conventions 1.41; ``dl.*`` and ``nemo.*`` as sent by
Megatron-LM and NeMo Lens.
"""

from __future__ import annotations

from typing import Final

SCOPE_NAME: Final = "otel_bridge"

# --- resource: who speaks ---------------------------------------------------------------------------------------------
PROJECT: Final = "rl.project"
RUN_NAME: Final = "rl.run.name"
RUN_ID: Final = "rl.run.id"
RUN_GROUP: Final = "rl.run.group"
RUN_TAGS: Final = "rl.run.tags"
RUN_NOTES: Final = "rl.run.notes"
RUN_JOB_TYPE: Final = "rl.run.job_type"
ROLE: Final = "rl.role"
RANK: Final = "rl.rank"
WORLD_SIZE: Final = "rl.world_size"
NODE_RANK: Final = "rl.node.rank"
INSTANCE_ID: Final = "rl.instance.id"
FORKED: Final = "rl.forked"
"""Bool, true in a forked child: such a process never decides a run's status."""
ATTEMPT: Final = "rl.attempt"
"""Int: which start of the role this process is, from 1, where the emitter was told."""
LAUNCHER: Final = "rl.launcher"
"""Bool, true on the resource of ``otel-bridge run`` itself: open until CMD has ended and the drain is done."""

SERVICE_NAME: Final = "service.name"
SERVICE_NAMESPACE: Final = "service.namespace"
NEMO_RUN_ID: Final = "nemo.run.id"

# What the first process of the run is and runs.
HOST_NAME: Final = "host.name"
PROCESS_COMMAND: Final = "process.command"
PROCESS_OWNER: Final = "process.owner"
VCS_REVISION: Final = "vcs.ref.head.revision"
ROLES: Final = "rl.roles"
"""Text, on a tracker's run: the roles that wrote to it, sorted, with commas."""
BRIDGE_VERSION: Final = "otel_bridge.version"
"""Text, on a tracker's run: the version that writes it."""

# The trackers' identity found in the emitter's environment, never credentials.
WANDB_RUN_ID: Final = "rl.wandb.run_id"
WANDB_ENTITY: Final = "rl.wandb.entity"
WANDB_PROJECT: Final = "rl.wandb.project"
WANDB_GROUP: Final = "rl.wandb.group"
WANDB_TAGS: Final = "rl.wandb.tags"
WANDB_NOTES: Final = "rl.wandb.notes"
WANDB_JOB_TYPE: Final = "rl.wandb.job_type"
MLFLOW_RUN_ID: Final = "rl.mlflow.run_id"
MLFLOW_EXPERIMENT: Final = "rl.mlflow.experiment"
TRACKIO_PROJECT: Final = "rl.trackio.project"
TRACKIO_SPACE: Final = "rl.trackio.space"

# --- rows -------------------------------------------------------------------------------------------------------------
ROW: Final = "rl.row"
"""Name of the gauge that says how many values its row has."""
STEP: Final = "rl.step"
SEQ: Final = "rl.seq"
EVENT_SEQ: Final = "rl.event.seq"
FOREIGN_STEPS: Final = ("dl.iteration", "step")
"""Where producers that do not know ``rl.step`` keep theirs, in order of preference."""

# --- rollouts ---------------------------------------------------------------------------------------------------------
ROLLOUT_SPAN: Final = "rollout"
ROLLOUT_ID: Final = "rl.rollout.id"
ROLLOUT_KEY: Final = "rl.rollout.key"
SPLIT: Final = "rl.split"
GROUP_ID: Final = "rl.group.id"
TRAJECTORY_ID: Final = "rl.trajectory.id"
PROMPT_INDEX: Final = "rl.prompt.index"
SAMPLE_INDEX: Final = "rl.sample.index"
BATCH_INDEX: Final = "rl.batch.index"
REWARD: Final = "rl.reward"
REWARDS_PREFIX: Final = "rl.rewards."
ADVANTAGE: Final = "rl.advantage"
POLICY_VERSION: Final = "rl.policy.version"
DATASET: Final = "rl.dataset"
DATASET_INDEX: Final = "rl.dataset.index"
TOOL_CALLS: Final = "rl.tool.calls"
TOOL_TIMEOUTS: Final = "rl.tool.timeouts"
TOOL_ERRORS: Final = "rl.tool.errors"
TOOL_RUNTIMES: Final = "rl.tool.runtimes"
METADATA_PREFIX: Final = "rl.metadata."
CLIPPED: Final = "rl.clipped"
"""Int, on a root span: bytes of content that were cut at emission."""
SPAN_COUNT: Final = "rl.rollout.spans"
"""Int, on a root span: spans of the trace, where the emitter knows that no other process adds any."""
TOOL_PREFIX: Final = "rl.tool."
MESSAGE_INDEX: Final = "rl.message.index"
"""Int, on a span that was made of a message of its rollout: which one of the root's; its text stands there only."""
TURN_INDEX: Final = "rl.turn.index"
"""Int, on a ``chat`` span of a rollout that was trained turn by turn: from 0."""
TURN_LAST: Final = "rl.turn.last"
"""Bool, on the ``chat`` span of the last such turn."""

# --- events (log records) ---------------------------------------------------------------------------------------------
EVENT_NAME: Final = "event.name"
EVENT_CONFIG: Final = "rl.run.config"
EVENT_ROLLOUTS: Final = "rl.rollouts"
ROLLOUTS_COUNT: Final = "rl.rollouts.count"
"""Int, on `EVENT_ROLLOUTS`: left-out rollouts, those without a reward included."""
EVENT_END: Final = "rl.run.end"
EVENT_ALIVE: Final = "rl.alive"
EVENT_DROPPED: Final = "rl.dropped"
"""Body: drop reason -> count since the process began; the emitter's own drops, so that they are visible."""
EVENT_EVALUATION: Final = "gen_ai.evaluation.result"
RUN_STATUS: Final = "rl.run.status"

# --- GenAI conventions ------------------------------------------------------------------------------------------------
GEN_AI_OPERATION: Final = "gen_ai.operation.name"
GEN_AI_REQUEST_MODEL: Final = "gen_ai.request.model"
GEN_AI_RESPONSE_MODEL: Final = "gen_ai.response.model"
GEN_AI_INPUT_MESSAGES: Final = "gen_ai.input.messages"
GEN_AI_OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
GEN_AI_SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"
GEN_AI_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
GEN_AI_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
GEN_AI_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
GEN_AI_TOOL_NAME: Final = "gen_ai.tool.name"
GEN_AI_TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
GEN_AI_TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
GEN_AI_TOOL_RESULT: Final = "gen_ai.tool.call.result"
EVALUATION_NAME: Final = "gen_ai.evaluation.name"
EVALUATION_VALUE: Final = "gen_ai.evaluation.score.value"
EVALUATION_LABEL: Final = "gen_ai.evaluation.score.label"
EVALUATION_EXPLANATION: Final = "gen_ai.evaluation.explanation"
OPERATION_CHAT: Final = "chat"
OPERATION_TOOL: Final = "execute_tool"

# --- HTTP and gRPC ----------------------------------------------------------------------------------------------------
HEADER_RUN_ID: Final = "rl-run-id"
HEADER_SERVER: Final = "otel-bridge-version"
"""Response header by which our receiver names itself."""
