"""Reasons of drops, in words: one line for each, the same on stderr and in ``otel-bridge status``."""

from __future__ import annotations

from collections.abc import Mapping

from otel_bridge.text.printable import printable
from otel_bridge.text.secret_patterns import redact_text

_MAX_KEY_CHARS = 100

MEANING: Mapping[str, str] = {
    # Counted where records are read.
    "evaluation/no_rollout": "evaluations of rollouts that have not come: trackers get them alone",
    "event/no_span": "GenAI log records whose span is not named, missing, or shown already",
    "lineage/late": "rollouts of training steps after which 64 came",
    "media/incomplete": "media with parts that never arrived",
    "message/invalid": "entries of lists of messages that are not messages: the others are shown",
    "phase/late": "phases of steps after which 64 came",
    "phase/too_many_names": "names of phases beyond 256 of a run: such a phase counts as other",
    "phase/unclosed": "phases that a process left open when it ended",
    "point/late": "values that came behind a newer one of their key and step, which is shown",
    "point/alternating": "values that two producers without an id send by turns: give each a service.instance.id",
    "ranks/late": "rows of ranks for steps that are forgotten",
    "row/incomplete": "parts of rows that did not arrive within 10 s",
    "segment_gaps": "stretches of segments, or whole segments, that cannot be read; records may be missing",
    "span/late": "spans of rollouts that were shown already",
    "tokens/evicted": "halves of token figures beyond OTEL_BRIDGE_TOKEN_BYTES",
    "tokens/late": "token figures of steps after which 64 came",
    "tokens/length": "token figures whose halves have different lengths",
    "tokens/twice": "token figures that a step has already",
    "too_many_keys": "values of keys beyond OTEL_BRIDGE_MAX_KEYS",
    "trace/evicted": "rollouts that are shown without the rest of their spans, since too many waited",
    "trace/other": "traces that are not rollouts: otlp, console and file get them",
    "translation_errors": "records that otel-bridge failed on; please report it",
    # Counted by the program.
    "alert_level": "levels of alerts other than info, warn and error: the alert is a warn",
    "alert_limit": "alerts beyond 1,000 of one process",
    "alert_title": "alerts without a title",
    "alert/too_many_by_rules": "alerts of OTEL_BRIDGE_ALERTS beyond 1,000 of a run",
    "alert/too_many_causes": "values that met a rule of OTEL_BRIDGE_ALERTS while 1,000 keys did",
    "bad_histogram": (
        "histograms that cannot be used: n counts, not negative, and n + 1 finite edges, not decreasing (n up to 4,096)"
    ),
    "adapter_failed": "calls of a framework that its adapter failed on; please report it",
    "bad_reduce": 'reductions of log() other than "mean", "sum", "min", "max" or ("mean", weight): the mean is shown',
    "bad_key": "keys whose str() raised",
    "bad_time": "times that are not in Unix nanoseconds after 1973: the row, or end of a rollout, has that of the call",
    "bad_step": "steps that are not numbers: the row got the next step",
    "clipped": "values and texts beyond the limits of their call, see emitting-reference.md: the rest was left out",
    "complex": "complex numbers",
    "config_not_a_mapping": "configs that are not mappings",
    "cyclic": "dicts that hold themselves",
    "described": "values without a text, of which only the type is recorded",
    "directory_full": "records beyond OTEL_BRIDGE_MAX_BYTES; `otel-bridge status` shows what uses the space",
    "disk_half_full": "records beyond half of the free disk; free space on it, or let a tracker catch up",
    "disk_full": "records that the disk had no room for; free space on it",
    "empty_distribution": "distributions without a finite number",
    "empty_key": "empty keys",
    "engine/restarted": "readings of engines that began to count again: after a restart, or as two under one address",
    "figure": "images and figures: wrap them, Image(figure)",
    "fractional_step": "steps with a fraction: it was cut off",
    "ended": "records after finish()",
    "forked_metrics": "collections of metrics in a forked child that this OpenTelemetry SDK mixes with its parent's",
    "internal_error": "records that otel-bridge failed on; please report it",
    "long_key": "keys longer than 4,096 characters",
    "media_file": "media whose file cannot be read",
    "media_format": "media of a form that cannot be encoded here: give an encoded file (PNG, WAV, MP4 …) or an array",
    "media_html_cut": "HTML longer than OTEL_BRIDGE_MESSAGE_CONTENT allows: half of it would not be valid",
    "media_mixed": (
        "media in a list of other things, tables and captions of texts in cells, or several tables under one key: log"
        " each under a key of its own"
    ),
    "media_rate": "media beyond OTEL_BRIDGE_MAX_MEDIA_PER_STEP of one key and step",
    "media_row_length": "rows of tables with more or fewer cells than columns: cut, or filled with nothing",
    "media_text_off": "texts and HTML, which OTEL_BRIDGE_MESSAGE_CONTENT=off keeps from leaving",
    "media_too_large": "media beyond OTEL_BRIDGE_MEDIA_BYTES",
    "media_unreadable": "media that raised when they were read",
    "mlflow_media": "MLflow objects: MlflowClient().log_artifact(run.id_in('mlflow'), …) or its like takes them",
    "none": "values that are None",
    "not_a_mapping": "calls of log() or summary() with something else than a dict",
    "not_captured": "calls and values of a captured tracker that have no counterpart here",
    "not_finite_in_distribution": "nan and inf within a distribution",
    "not_written": "records that could not be appended: the directory must be writable",
    "object": "values that are not numbers; wrap media, e.g. Image(…)",
    "evaluation_not_a_mapping": "calls of log_rewards() with something else than a dict",
    "evaluation_id": "rewards without a rollout id",
    "evaluation_value": "rewards that are neither a number nor a text",
    "phase_name": "phase names that are empty or unreadable: recorded under the name phase",
    "phase_unfinished": "phases that were still open at the end of their process: not recorded",
    "train_no_rollouts": "calls of train_on() with something else than rollouts or ids",
    "train_rollout_id": "rollouts in train_on() without an id: they cannot be identified",
    "train_too_many": "calls of train_on() with more than 100,000 rollouts: the rest",
    "token_length": "streams of tokens of another length than the tokens of their rollout: that rollout has none",
    "token_limit": "rollouts in annotate() beyond 16,777,216 tokens: in the statistics, without a token view",
    "token_no_rollouts": "calls of annotate() with something else than rollouts or ids",
    "token_not_finite": "values of tokens that are nan or inf: left out",
    "token_rollout_id": "rollouts with values of tokens, but without an id: they cannot be identified",
    "token_streams": "streams of annotate() beyond 12",
    "token_text": "rollouts whose texts of tokens hold what is redacted: they have none",
    "token_too_many": "calls of annotate() with more than 100,000 rollouts: the rest",
    "token_twice": "rollouts that one call of annotate() names again: the first counts",
    "token_unreadable": "values of tokens that are not numbers, or raised when they were read",
    "reentered": "records of a signal handler beyond 10,000",
    "reserved_key": "keys named rl.row",
    "rollout_decode": "texts whose decode function raised: the rollout has none",
    "rollout_empty_prompt": "rollouts without a prompt",
    "rollout_message": "messages, parts and tool calls in no known shape: kept as text",
    "rollout_field": "fields of rollouts and turns that are not known, or whose value is not of their kind: left out",
    "rollout_long_list": "entries of a parallel list beyond the responses",
    "rollout_no_response": "prompts that no response belongs to",
    "rollout_no_mapping": "rollouts that are neither Rollout nor a dict",
    "rollout_redaction": "texts that the redaction function failed on: they are left out",
    "rollout_reward": "rewards that are not numbers: the rollout has none",
    "rollout_short_list": "entries that a parallel list was too short for",
    "rollout_span": "spans of a rollout that could not be encoded",
    "rollout_step": "steps of rollouts that are not numbers",
    "rollout_unknown_column": "columns of log_generations() that are not known",
    "rollout_unreadable": "rollouts that raised when they were read",
    "rollout_unfinished": "live rollouts that had not closed",
    "run_full": "records beyond 1 GiB of a run without an exporter: deliver it with `otel-bridge drain`",
    "same_key": "values whose flattened key came twice: the last one is recorded",
    "summary_value": "values of summary() that are neither a number nor a text nor a bool",
    "text": (
        "texts: log them as Text(…), Markdown(…) or Html(…), in a Table, the config or summary(), or in a rollout"
    ),
    "too_deep": "values nested deeper than 32",
    "too_large": "records above 64 MiB",
    "too_large_int": "integers beyond a double",
    "too_many_texts": "texts of more than 10,000 keys that a captured program logs",
    "too_many_numbers": "distributions of more than 4,000,000 numbers, or of lists that hold one another very often",
    "trackio_media": (
        "Trackio objects: use those of otel_bridge (Image, Table, Text, Audio, Video), or a Trackio run of their own"
    ),
    "unknown_argument": "arguments that an otel-bridge call does not know",
    "unknown_text": "texts of attributes that no convention names: with less than full content they do not leave whole",
    "unreadable_value": "values that raised when they were read: left out, or shown as [unreadable]",
    "wandb_media": (
        "wandb objects: use those of otel_bridge (Image, Table, Html, Audio, Video), or a W&B run of their own, with an"
        " id of its own"
    ),
}
"""Reason to its explanation for the user."""


def drop_lines(counts: Mapping[str, int], first_keys: Mapping[str, str]) -> list[str]:
    """Return a line for each reason with a drop.

    The arguments map reasons to numbers and to first keys.
    """
    lines: list[str] = []
    for reason, count in counts.items():
        if count:
            lines.append(drop_line(reason, count, first_keys.get(reason, "")))
    return lines


def drop_line(reason: str, count: int, first_key: str) -> str:
    """Return a line on *count* drops: their reason in words, its name, and the first key if it is known.

    A name alone, such as "none", would look as if nothing was dropped.
    """
    meaning = MEANING.get(reason, "see emitting-reference.md")
    line = f"dropped {count:,}: {meaning} [{reason}]"
    if first_key:
        line += f", first '{shown_key(first_key)}'"
    return line


def shown_key(key: str) -> str:
    """Return *key* in printable form: cut, without secrets and without terminal control characters.

    Cut twice: to twice the length before the search for secrets, which is slow, and after it, since
    it may lengthen the key.
    """
    cut = redact_text(key[: 2 * _MAX_KEY_CHARS])
    plain = printable(cut)
    if len(plain) <= _MAX_KEY_CHARS:
        return plain
    return f"{plain[: _MAX_KEY_CHARS - 1]}…"
