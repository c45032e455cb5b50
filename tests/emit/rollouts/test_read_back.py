"""What the bridge reads of rollouts that a real run appended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import otel_bridge
from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.segment import read_segment
from otel_bridge.records import Evaluation, RolloutRecord, Row, trace_id_of
from otel_bridge.translation.options import TranslationOptions
from otel_bridge.translation.translator import SegmentInfo, Translator
from support.otlp.memory_state import MemoryState
from support.trainers.emit_rollout_doubles import CONVERSATION


def read_back(base: Path, run_id: str) -> list[Any]:
    translator = Translator(MemoryState(), TranslationOptions(run_id=run_id))
    records: list[Any] = []
    now = 0
    for segment in run_folders(base)[0].segments():
        header, scan = read_segment(segment.path, 0, limit_bytes=1 << 30, final=True)
        assert header is not None
        source = SegmentInfo(
            header.instance_id, header.kind, header.resource, header.role
        )
        translator.opened(source, header.created_unix_ns)
        for frame in scan.frames:
            now = frame.append_unix_ns
            records += translator.frame(
                source, int(frame.signal), frame.payload, frame.whole, now, now
            )
    return records + translator.close(now)


def test_a_batch_a_live_rollout_and_a_late_reward_arrive_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BRIDGE_OFFLINE", "1")
    run = otel_bridge.init("p", "n", role="explorer", exporters="file", dir=tmp_path)
    finished = otel_bridge.Rollout(
        CONVERSATION, reward=1.0, rewards={"format": 0.5}, id="r1", group="g", sample=0, policy_version=8,
        finish_reason="stop", dataset="gsm8k", metadata={"level": 3},
    )  # fmt: skip

    otel_bridge.log_rollouts([finished], step=3, split="train")
    with otel_bridge.rollout(
        step=3, split="train", group="g", sample=1, id="r2"
    ) as rollout:
        with otel_bridge.chat("policy", input="2 + 2?") as turn:
            turn.output = "4"
        rollout.reward = 0.0
    otel_bridge.log_generations(
        prompts=["p"], responses=["a", "b"], rewards=[0.5, 0.5], step=4, split="train"
    )
    otel_bridge.log_reward("r1", 0.25, name="judge")
    run.finish()

    records = read_back(tmp_path, run.id)
    by_id = {
        record.id: record for record in records if isinstance(record, RolloutRecord)
    }
    first, second = by_id[trace_id_of(run.id, "r1")], by_id[trace_id_of(run.id, "r2")]
    assert list(first.messages)[-1] == {"role": "assistant", "content": "It is 4."}
    assert [message["role"] for message in first.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert [span.kind for span in first.spans] == [
        "span",
        "generation",
        "tool",
        "generation",
    ]
    facts = (
        first.role,
        first.step,
        first.split,
        first.group,
        first.reward,
        first.policy_version,
        first.dataset,
    )
    assert facts == ("explorer", 3, "train", "g", 1.0, 8, "gsm8k")
    assert (first.metadata["level"], first.incomplete, first.clipped_bytes) == (
        3,
        False,
        0,
    )
    assert [message["content"] for message in second.messages] == ["2 + 2?", "4"]
    assert (second.reward, second.incomplete) == (0.0, False)
    assert len(by_id) == 4
    late = {
        record.name: record.value
        for record in records
        if isinstance(record, Evaluation)
    }
    assert first.rewards.get("judge", late.get("judge")) == 0.25
    totals = {
        key: value
        for row in records
        if isinstance(row, Row)
        for key, value in row.values.items()
    }
    assert totals["explorer/rollouts/total"] == 2


def test_spans_made_of_messages_show_their_texts_though_they_are_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BRIDGE_OFFLINE", "1")
    result = "4 " * 2000
    messages = [
        CONVERSATION[0],
        CONVERSATION[1],
        {**CONVERSATION[2], "content": result},
        CONVERSATION[3],
    ]
    run = otel_bridge.init("p", "n", role="explorer", exporters="file", dir=tmp_path)
    otel_bridge.log_rollouts(
        [otel_bridge.Rollout([*messages, {"role": "user", "content": "Thanks."}])],
        step=1,
    )
    run.finish()

    [rollout] = [
        record
        for record in read_back(tmp_path, run.id)
        if isinstance(record, RolloutRecord)
    ]

    asked = rollout.messages[1]
    root, first, tool, last = rollout.spans
    assert [message["role"] for message in rollout.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    assert root.input == [*rollout.messages[:3], rollout.messages[4]]
    assert (first.input, first.output) == ([CONVERSATION[0]], [asked])
    assert (tool.input, tool.output) == ({"expression": "2 + 2"}, result)
    assert (last.input, last.output) == (
        [rollout.messages[2]],
        [{"role": "assistant", "content": "It is 4."}],
    )
    assert "rl.message.index" not in {
        **first.attributes,
        **tool.attributes,
        **last.attributes,
    }
