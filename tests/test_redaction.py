"""Secrets are known by their name and by their shape, wherever in a config they stand."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_bridge.content.policy import ContentPolicy
from otel_bridge.emit.config.hyperparameters import config_of
from otel_bridge.records import Json
from otel_bridge.text.secret_patterns import (
    redact_and_cut,
    redact_message,
    redact_named,
    redact_text,
    scrubbed,
    secret_by_name,
)

KEY = "hf_" + "b" * 34


def shapes(text: str, _name: str) -> str:
    return redact_text(text)


@pytest.mark.parametrize(
    "key",
    [
        "password", "db_password", "WANDB_API_KEY", "apiKey", "openai.api-key", "aws_secret_access_key", "hf_token",
        "auth_token", "AccessToken", "private_key", "credentials", "Authorization", "client_secret", "redis_pass",
        "session-cookie", "PASSWORDS",
    ],
)  # fmt: skip
def test_a_secret_is_known_by_its_name(key: str) -> None:
    assert secret_by_name(key, "correct horse")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("pad_token", "<|endoftext|>"),
        ("user_token", "<|im_start|>user"),
        ("id_token", "[ID]"),
        ("pass", "first"),
        ("eos_token", "</s>"),
        ("max_new_tokens", 512),
        ("tokenizer", "gpt2"),
        ("token_budget", "auto"),
        ("key", "loss"),
        ("monitor_key", "eval/reward"),
        ("secretary", "anna"),
        ("use_auth_token", True),
        ("keyboard", "qwerty"),
    ],
)
def test_what_only_sounds_like_a_secret_stays(key: str, value: object) -> None:
    assert not secret_by_name(key, value)


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("hf_" + "a" * 34, "[redacted]"),
        ("use sk-" + "A1" * 12 + " here", "use [redacted] here"),
        ("ghp_" + "a" * 36, "[redacted]"),
        ("AKIAIOSFODNN7EXAMPLE", "[redacted]"),
        ("postgres://me:pa55word@db/x", "postgres://[redacted]@db/x"),
        ("Authorization: Bearer abcdef0123456789", "Authorization: Bearer [redacted]"),
        ("https://x/?token=abc123def&a=1", "https://x/?token=[redacted]&a=1"),
        (
            "AccountName=me;AccountKey=abcd1234==;Suffix=net",
            "AccountName=me;AccountKey=[redacted];Suffix=net",
        ),
        (
            "https://b/k?X-Amz-Signature=abcdef01&X-Amz-Date=1",
            "https://b/k?X-Amz-Signature=[redacted]&X-Amz-Date=1",
        ),
        (
            "https://hooks.slack.com/services/T0/B0/" + "x" * 24,
            "https://hooks.slack.com/services/[redacted]",
        ),
        ("--max_tokens=512000 --lr 1", "--max_tokens=512000 --lr 1"),
        ("--max-tokens 512000 --lr 1", "--max-tokens 512000 --lr 1"),
        (
            "serve --api-key abc-123-def --port 80",
            "serve --api-key [redacted] --port 80",
        ),
        ("--tokenizer gpt2xlarge", "--tokenizer gpt2xlarge"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----",
            "[redacted]",
        ),
        ("meta-llama/Llama-3-8B", "meta-llama/Llama-3-8B"),
    ],
)
def test_a_secret_is_known_by_its_shape(text: str, redacted: str) -> None:
    assert redact_text(text) == redacted
    assert config_of({"a": [text]}, print) == {"a": [redacted]}


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        ({"api_keys": ["one", "two"]}, {"api_keys": ["[redacted]", "[redacted]"]}),
        (
            {"credentials": {"user": "me", "port": 5, "more": [{"x": "y"}]}},
            {"credentials": {"user": "[redacted]", "port": 5, "more": [{"x": "[redacted]"}]}},
        ),
        ({"argv": ["--api-key", "abc", "--lr", "1"]}, {"argv": ["--api-key", "[redacted]", "--lr", "1"]}),
        ({"argv": ["--password=swordfish", "x"]}, {"argv": ["--password=[redacted]", "x"]}),
        ({"env": {"WANDB_API_KEY": "a b", "HOME": "~"}}, {"env": {"WANDB_API_KEY": "[redacted]", "HOME": "~"}}),
        ({"deep": [[{"note": f"use {KEY}"}]]}, {"deep": [[{"note": "use [redacted]"}]]}),
        ({KEY: 1}, {"[redacted]": 1}),
        ({"secrets": {}, "password": None, "token": 7}, {"secrets": {}, "password": None, "token": 7}),
    ],
)  # fmt: skip
def test_names_hold_for_all_below_them_and_flags_for_what_follows(
    config: dict[str, Json], kept: Json
) -> None:
    assert config_of(config, print) == kept
    assert scrubbed(config, text=shapes) == kept


@pytest.mark.parametrize("levels", [0, 1, 2, 3])
def test_names_count_in_json_that_stands_in_a_text_however_often_it_is_escaped(
    levels: int,
) -> None:
    text = 'ok {"password": "a\\"b", "user": "me", "apiKey" : "x", "n": 1, "pad_token":"<pad>"}'
    kept = 'ok {"password": "[redacted]", "user": "me", "apiKey" : "[redacted]", "n": 1, "pad_token":"<pad>"}'
    for _ in range(levels):
        text, kept = json.dumps({"said": [text]}), json.dumps({"said": [kept]})

    assert redact_named(text) == kept
    assert redact_message(text) == kept


def test_the_value_of_a_name_is_redacted_where_the_text_was_cut_behind_it() -> None:
    assert redact_named('{"password": "hun') == '{"password": "[redacted]'


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=30),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=12), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(JSON)
def test_what_is_scrubbed_once_stays_as_it_is(value: Json) -> None:
    once = scrubbed(value, text=shapes)

    assert scrubbed(once, text=shapes) == once


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("clone https://me:hunter2@host/x now", "clone https://[redacted]@host/x now"),
        (
            "log in with password=hunter2 please",
            "log in with password=[redacted] please",
        ),
        ("Password: hunter2", "Password: [redacted]"),
        ("?token=abc123def456&x=1", "?token=[redacted]&x=1"),
        ("api_key=abc123def456", "api_key=[redacted]"),
        ("client_secret: abc123def456", "client_secret: [redacted]"),
        ("Authorization: Bearer abcdefghijklmnop", "Authorization: Bearer [redacted]"),
        (
            "max_tokens=512, token = tokenizer(x), pad_token: <pad>",
            "max_tokens=512, token = tokenizer(x), pad_token: <pad>",
        ),
        ("the secret: be kind", "the secret: be kind"),
        ("https://host/@user?x=a:b", "https://host/@user?x=a:b"),
    ],
)
def test_a_message_loses_passwords_and_keys_behind_their_names_and_in_urls(
    text: str, expected: str
) -> None:
    assert ContentPolicy().redact(text) == expected


@pytest.mark.parametrize("before", [0, 5, 30])
def test_a_secret_at_the_edge_of_a_cut_is_redacted_whole(before: int) -> None:
    text = "a" * (30 - before) + " " + KEY + " " + "b" * 2_000

    assert "hf_" not in redact_and_cut(text, 32)
    assert len(redact_and_cut(text, 32)) == 32
