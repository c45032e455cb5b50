"""Tests of what is redacted from texts before they leave the process, and of hooks that do it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_bridge.content import user_function
from otel_bridge.content.policy import ContentPolicy
from otel_bridge.content.user_function import (
    Redaction,
    by_user,
    redact_by_setting,
    redact_with,
)
from otel_bridge.emit.conversations.conversation import MessageLimits, content_of
from otel_bridge.emit.rollouts.rollout import Rollout
from otel_bridge.errors import ConfigError
from otel_bridge.messages.content_filter import ContentFilter
from otel_bridge.text.secret_patterns import REDACTED
from support.trainers.emit_rollout_doubles import (
    CONVERSATION,
    MemoryRun,
    attributes,
    log_reward,
    log_rollouts,
    message,
    open_rollout,
    span_messages,
)

KEY = "sk-" + "a1" * 12


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    yield
    redact_with(None)


@pytest.mark.parametrize(
    "secret",
    [
        KEY, "sk-proj-" + "a" * 30, "hf_" + "a" * 34, "AKIA" + "A" * 16, "ghp_" + "a" * 36, "github_pat_" + "a" * 30,
        "glpat-" + "a" * 20, "xoxb-" + "1" * 12, "AIza" + "a" * 35, f"eyJ{'a' * 12}.{'b' * 12}.{'c' * 12}",
        "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----", "dapi" + "0a" * 16,
        "gsk_" + "a" * 24, "xai-" + "a" * 24, "npm_" + "a" * 36, "pypi-" + "a" * 40,
        "nvapi-" + "a" * 24, "wandb_v1_" + "a" * 24, "ya29." + "a" * 24, "api_org_" + "a" * 24,
    ],
)  # fmt: skip
def test_keys_and_tokens_are_redacted(secret: str) -> None:
    assert ContentPolicy().redact(f"a {secret} b") == f"a {REDACTED} b"
    assert ContentPolicy(secrets=False).redact(secret) == secret


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("OPENAI_API_KEY=abcdefghijklmnop", f"OPENAI_API_KEY={REDACTED}"),
        ("Authorization: Bearer abcdefghijklmnop", f"Authorization: Bearer {REDACTED}"),
        ('"HF_TOKEN": "abcdefghijklmnop"', f'"HF_TOKEN": "{REDACTED}"'),
        ("authorization: bearer abcdefghijklmnop", f"authorization: bearer {REDACTED}"),
        (
            "a risk-free, task-like _TOKEN of SECRET sorts",
            "a risk-free, task-like _TOKEN of SECRET sorts",
        ),
    ],
)
def test_named_secrets_lose_their_value_and_words_stay(
    text: str, redacted: str
) -> None:
    assert ContentPolicy().redact(text) == redacted


_SHAPES = "|".join(
    (
        *(
            "sk-[a-z0-9_-]{20,24}",
            "hf_[A-Za-z]{30,34}",
            "(AKIA|ASIA)[0-9A-Z]{16}",
            "gh[opsur]_[a-z]{36}",
        ),
        *(
            "github_pat_[a-z_]{22}",
            "glpat-[a-z-]{20}",
            "xox[abeprs]-[a-z0-9-]{10}",
            "AIza[a-z_-]{35}",
        ),
        *(
            "dapi[0-9a-f]{32}",
            "nvapi-[a-z_-]{20}",
            "gsk_[a-z]{20}",
            "npm_[a-z]{30}",
            "pypi-[a-z]{30}",
            "xai-[a-z]{20}",
            "wandb_v1_[a-z]{20}",
            r"ya29\.[a-z_-]{20}",
            "api_org_[a-z]{20}",
        ),
        *(
            r"\"([a-z]{1,8}_)?(password|apiKey|jwt|client_secret)\"( ?:|: )\"[a-z]{1,9}\"",
        ),
        *(
            r"eyJ[a-z_-]{10}\.[a-z]{10}\.[a-z]{5}",
            "-----BEGIN [A-Z]{0,4} ?PRIVATE KEY-----",
            "[Bb]earer [a-z.]{12}",
        ),
        r"(API_KEY|SECRET|PASSWORD|ACCESS_TOKEN|AUTH_TOKEN|MY_TOKEN)['\"]? ?[=:] ?['\"]?[a-z]{12}",
    )
)


@settings(max_examples=400)
@given(
    st.text(max_size=40),
    st.from_regex(_SHAPES, fullmatch=True),
    st.text('AS-_JBbs \n"', max_size=40),
)
def test_the_look_at_all_texts_at_once_misses_nothing(
    before: str, secret: str, behind: str
) -> None:
    text = f"{before} {secret} {behind}"
    policy = ContentPolicy()

    [message] = content_of(
        [{"role": "user", "content": text}], MessageLimits(policy, 1 << 20)
    ).messages

    assert REDACTED in policy.redact(text)
    said = orjson.loads(message.json)["parts"][0]["content"]
    assert said == policy.redact(text).encode("utf-8", "replace").decode()


def test_a_secret_that_an_escape_hides_is_redacted_of_arguments() -> None:
    hidden = '{"key": "\\u0073k-' + "a" * 30 + '"}'
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "f", "arguments": hidden},
    }

    content = content_of(
        [{"role": "assistant", "content": "", "tool_calls": [call]}],
        MessageLimits(ContentPolicy(), 1 << 20),
    )

    assert content.messages[0].calls[0].arguments == b'{"key":"[redacted]"}'


def test_what_a_name_says_to_be_a_secret_is_redacted_of_metadata_arguments_and_json_in_texts() -> (
    None
):
    run = MemoryRun()
    arguments = '{"user": "me", "password": "sw0rd", "auth": {"tokens": 3, "access_token": "x y"}}'
    calls = [
        {
            "id": "c1",
            "type": "function",
            "function": {"name": "login", "arguments": arguments},
        }
    ]
    messages = [
        {"role": "user", "content": 'use {"api_key": "sw0rd"}'},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {
            "role": "tool",
            "tool_call_id": "c1",
            "content": '{"cookie": "sw0rd", "ok": true}',
        },
        {"role": "assistant", "content": [{"type": "state", "secret": "sw0rd"}]},
    ]
    metadata = {
        "api_key": "sw0rd",
        "credentials": {"user": ["me"]},
        "argv": ["--password", "sw0rd"],
        "pad_token": "<pad>",
    }

    log_rollouts(
        run,
        [
            Rollout(
                messages,
                metadata=metadata,
                tools={"session_token": "sw0rd", "calls": 1},
            )
        ],
    )
    with (
        open_rollout(run) as rollout,
        rollout.tool("login", arguments={"password": "sw0rd"}, api_key="sw0rd") as tool,
    ):
        tool.result = '{"jwt": "sw0rd"}'

    root, _, tool_span, _ = run.frames[0]
    assert span_messages(root).input[0] == message(
        "user", 'use {"api_key": "[redacted]"}'
    )
    assert orjson.loads(attributes(tool_span)["gen_ai.tool.call.arguments"]) == {
        "user": "me", "password": REDACTED, "auth": {"tokens": 3, "access_token": REDACTED},
    }  # fmt: skip
    assert (
        attributes(tool_span)["gen_ai.tool.call.result"]
        == '{"cookie": "[redacted]", "ok": true}'
    )
    assert {key[3:]: value for key, value in attributes(root).items() if key.startswith(("rl.m", "rl.tool"))} == {
        "metadata.api_key": REDACTED, "metadata.credentials": {"user": [REDACTED]},
        "metadata.argv": ["--password", REDACTED], "metadata.pad_token": "<pad>",
        "tool.session_token": REDACTED, "tool.calls": 1,
    }  # fmt: skip
    assert not any(b"sw0rd" in payload for _, payload in run.records)


@pytest.mark.parametrize(
    "given", ['{"argv": ["--api-key", "sw0rd"]}', {"argv": ["--api-key", "sw0rd"]}]
)
def test_a_flag_in_a_list_of_arguments_says_what_follows(given: object) -> None:
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "f", "arguments": given},
    }

    content = content_of(
        [{"role": "assistant", "content": "", "tool_calls": [call]}],
        MessageLimits(ContentPolicy(), 1 << 20),
    )

    assert (
        content.messages[0].calls[0].arguments == b'{"argv":["--api-key","[redacted]"]}'
    )


def test_names_say_nothing_where_secrets_may_leave() -> None:
    run = MemoryRun(REDACT="none")

    log_rollouts(run, [Rollout("q", metadata={"api_key": "abc"})])

    assert attributes(run.roots[0])["rl.metadata.api_key"] == "abc"


def test_an_error_loses_what_a_config_loses() -> None:
    run = MemoryRun()

    log_rollouts(
        run,
        [
            Rollout(
                "q",
                error=OSError("no route to https://me:pa55word@host/x?token=abc123def"),
            )
        ],
    )

    assert (
        run.roots[0].status.message
        == "no route to https://[redacted]@host/x?token=[redacted]"
    )


def test_addresses_are_redacted_where_asked_for() -> None:
    text = "mail ann@example.org now"

    assert ContentPolicy().redact(text) == text
    assert (
        ContentPolicy.read({"OTEL_BRIDGE_REDACT": "email"}).redact(text)
        == f"mail {REDACTED} now"
    )


def test_no_text_of_a_rollout_passes_by_redaction() -> None:
    run = MemoryRun()
    call = {
        "id": "c1",
        "function": {"name": "shell", "arguments": f'{{"command": "export K={KEY}"}}'},
    }
    messages = [
        {"role": "user", "content": KEY},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": KEY},
                {"type": "new", "x": {KEY: [KEY]}},
            ],
        },
        {
            "role": "assistant",
            "content": KEY,
            "reasoning_content": KEY,
            "tool_calls": [call],
        },
        {"role": "tool", "tool_call_id": "c1", "content": KEY},
        {"role": "assistant", "parts": [{"type": "text", "content": KEY}]},
    ]

    log_rollouts(
        run,
        [
            Rollout(
                messages,
                error=ValueError(KEY),
                metadata={"a": {"b": KEY}},
                tools={"errors": [KEY]},
            )
        ],
    )
    log_reward(run, "r1", 1.0, explanation=KEY)

    assert len(run.spans) == 4
    assert not any(KEY.encode() in payload for _, payload in run.records)


def test_the_hook_sees_every_text_and_one_that_raises_costs_that_text() -> None:
    run = MemoryRun()

    def hook(text: str) -> str:
        if "2 + 2" in text:
            raise RuntimeError("no")
        return text.upper()

    redact_with(hook)
    log_rollouts(run, [Rollout(CONVERSATION)])

    assert span_messages(run.roots[0]).input[0] == message("user", REDACTED)
    assert span_messages(run.roots[0]).output == [message("assistant", "IT IS 4.")]


def test_a_text_whose_hook_another_thread_removes_is_redacted_by_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Removed:
        """Has the function at the first look alone."""

        functions: ClassVar[list[Redaction]] = [str.upper]

        @property
        def redaction(self) -> Redaction | None:
            return self.functions.pop() if self.functions else None

    monkeypatch.setattr(user_function, "_UserFunction", Removed())

    assert by_user("text") == "TEXT"


def test_what_the_hook_fails_on_is_counted_and_never_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = MemoryRun()

    def hook(text: str) -> str:
        raise ValueError(text)

    redact_with(hook)
    log_rollouts(run, [Rollout([{"role": "user", "content": "mine"}])])

    assert run.drops == {"rollout_redaction": 1}
    assert caplog.messages == [
        "the redaction hook gave ValueError instead of text; such texts are left out"
    ]


def test_the_setting_names_the_hook_by_module_and_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shouting.py").write_text(
        "LOUD = 1\ndef Shout(text):\n    return text.upper()\n", "utf-8"
    )
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])

    redact_by_setting({"OTEL_BRIDGE_REDACT": "email,shouting:Shout"})

    policy = ContentPolicy.read({"OTEL_BRIDGE_REDACT": "email,shouting:Shout"})
    assert policy == ContentPolicy(secrets=False, email=True)
    assert policy.redact("mail me@host.org") == f"MAIL {REDACTED.upper()}"
    assert (
        ContentPolicy.read({"OTEL_BRIDGE_REDACT": "shouting:Shout"}) == ContentPolicy()
    )
    for named, seen in (
        ("nowhere:f", "No module named 'nowhere'"),
        ("shouting:LOUD", "a int, expected a function"),
    ):
        with pytest.raises(ConfigError, match=seen):
            redact_by_setting({"OTEL_BRIDGE_REDACT": named})
    with pytest.raises(
        ConfigError,
        match="expected none, or some of secrets, email, and at most one module:function",
    ):
        redact_by_setting({"OTEL_BRIDGE_REDACT": "a b:c"})


def test_a_secret_on_the_edge_of_a_cut_is_seen_whole() -> None:
    text = "x" * 95 + " " + KEY

    cut = ContentFilter(ContentPolicy(), 100).text(text)

    assert "sk-a" not in cut


@pytest.mark.parametrize("content", ["full", "off"])
def test_a_secret_as_a_key_of_facts_does_not_leave(content: str) -> None:
    run = MemoryRun(MESSAGE_CONTENT=content)
    facts = {f"tool {KEY}": 1}

    log_rollouts(run, [Rollout("hi", rewards=facts, tools=facts, metadata=facts)])
    with (
        open_rollout(run) as rollout,
        rollout.chat("policy", metadata=facts),
        rollout.tool("calculator", **facts),
    ):
        pass

    keys = {key for span in run.spans for key in attributes(span)}
    assert not [key for key in keys if KEY in key]
    assert {
        f"rl.{kind}.tool {REDACTED}" for kind in ("rewards", "tool", "metadata")
    } <= keys


def test_keys_of_facts_that_are_equal_once_redacted_are_counted() -> None:
    run = MemoryRun()
    log_rollouts(run, [Rollout("hi", metadata={KEY: 1, KEY + "b": 2})])
    assert attributes(run.roots[0])[f"rl.metadata.{REDACTED}"] == 2
    assert run.drops == {"same_key": 1}
