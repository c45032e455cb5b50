"""What a person sees: MLflow's real UI of a small run in two roles, in a headless Chromium."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.report import read_report
from support.browser.browser_job import do_job, mlflow_places, mlflow_ui
from support.browser.browser_page import CHROMIUM, Page, open_page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None and os.environ.get("CI") != "true",
        reason="no Chromium here; it is the Debian package `chromium`",
    ),
]


@dataclass(frozen=True)
class Shown:
    """Where the run and its first rollout are shown, and the address of the run that is printed."""

    run: str
    rollout: str
    printed: str


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    folder = tmp_path_factory.mktemp("job")
    _, database = do_job(folder)
    run, rollout = mlflow_places(database)
    with mlflow_ui(database, folder / "ui") as address:
        yield Shown(address + run, address + rollout, printed_address(folder, address))


def printed_address(folder: Path, server: str) -> str:
    """Return the address that `finish` and `status` print, at the *server* of this test."""
    (run_folder,) = run_folders(folder / ".otel-bridge")
    report = read_report(run_folder)
    assert report is not None
    default, separator, path = (report.exporters["mlflow"].url or "").partition("/#/")
    assert default == "http://127.0.0.1:5000", "where `mlflow ui` serves a database"
    return f"{server}{separator}{path}"


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    assert CHROMIUM is not None, "no Chromium: apt-get install chromium"
    with open_page(tmp_path / "browser", height=1400) as page:
        yield page


def lines(page: Page, *last: str) -> list[str]:
    """What can be read on the page once all of *last* is there."""
    for text in last:
        page.until(f"document.body && document.body.innerText.includes({text!r})", text)
    return page.text().split("\n")


@pytest.mark.long
def test_the_traces_of_a_run_show_question_answer_group_and_mean_rewards(
    shown: Shown, page: Page
) -> None:
    page.go(f"{shown.run}/traces")

    said = lines(page, "crates-11", "crates-13", "** pencils.", "0.5 (AVG)")

    assert "6 of 6" in said
    assert {"crates-11", "crates-12", "crates-13"} <= set(
        said
    )  # the groups, as sessions
    assert (
        "A crate holds 11 boxes of 24 pencils. How many pencils are in 7 crates?"
        in said
    )
    # The two samples of a group are of one millisecond: MLflow shows the answer of either.
    assert {"There are **1848** pencils.", "There are **264** pencils."} & set(said)
    assert {"answer", "format", "reward", "0.5 (AVG)"} <= set(said)


def test_a_rollout_is_a_chat_with_its_tool_calls_and_a_tree_of_spans(
    shown: Shown, page: Page
) -> None:
    page.go(shown.rollout)

    said = lines(page, "There are 1848 pencils.")

    start = said.index("rollout")
    spans = [
        line for line in said[start:] if line in {"chat", "execute_tool calculator"}
    ]
    assert spans == [
        "chat",
        "execute_tool calculator",
        "chat",
        "execute_tool calculator",
        "chat",
    ]
    chat = said[said.index("Inputs") :]
    known = {
        "System",
        "User",
        "Assistant",
        "calculator",
        "7 * 11",
        "77",
        "77 * 24",
        "1848",
    }
    talk = [line for line in chat if line in known]
    assert talk == [
        "System", "User", "Assistant", "calculator", "7 * 11", "calculator", "77",
        "Assistant", "calculator", "77 * 24", "calculator", "1848", "Assistant",
    ]  # fmt: skip
    assert "3 tags" in said  # step, reward and its parts: no resource attribute
    assert said[said.index("Assess") + 1] == "3"


@pytest.mark.long
def test_the_printed_address_opens_a_section_of_charts_for_each_role_over_its_own_steps(
    shown: Shown, page: Page
) -> None:
    page.go(shown.printed)
    page.until("document.querySelectorAll('.js-plotly-plot').length >= 2", "charts")

    said = lines(page, "ppo-7b (trainer/loss)")

    explorer, trainer = (
        said.index("ppo-7b (explorer/accuracy)"),
        said.index("ppo-7b (trainer/loss)"),
    )
    assert {"explorer", "accuracy", "100"} <= set(
        said[:explorer]
    )  # its steps go to 119
    assert {"trainer", "loss", "40"} <= set(said[explorer:trainer])  # and these to 39
    assert "100" not in said[explorer:trainer]
