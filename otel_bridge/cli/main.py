"""Defines the command ``otel-bridge``.

Its commands are imported when they are called, so that ``--help`` is quick.
"""

from __future__ import annotations

import difflib
import importlib
import os
from importlib.metadata import version

import click

from otel_bridge.capture.hook import release
from otel_bridge.cli.errors import exit_code_of
from otel_bridge.cli.output import call_with_streams
from otel_bridge.cli.terminal import echo
from otel_bridge.emit.config.capture_env import set_capture_aside
from otel_bridge.errors import OtelBridgeError
from otel_bridge.journal.base_dir import working_folder
from otel_bridge.otlp.proxies import direct_variables

_COMMANDS = {
    "demo": "run a small real RL job into W&B (offline), MLflow and Trackio",
    "run": "run a command and deliver what it emits to the trackers",
    "serve": "receive OTLP and deliver every run to the trackers",
    "drain": "deliver the records in run folders",
    "status": "show what each run has emitted and delivered",
    "rollouts": "show rollouts: messages, tool calls, rewards",
    "timeline": "show where the time of each step went, or write it for Perfetto",
    "dead-letters": "list, retry or discard records that a tracker refused",
    "finish": "mark a run as ended if its processes cannot report it",
    "doctor": "check the settings, the trackers and this machine",
}

_PACKAGES = frozenset({"run", "serve", "status", "rollouts", "timeline", "doctor"})


class _Commands(click.Group):
    """Loads the command ``name`` from ``otel_bridge.cli.<name>.command`` (``-`` as ``_``).

    A command with a package of its own is in ``otel_bridge.cli.<name>.command``.
    """

    def __call__(self, *args: object, **kwargs: object) -> object:
        return call_with_streams(
            lambda: super(_Commands, self).__call__(*args, **kwargs)
        )

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command and return it; ``None``, which click reports, for another name."""
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        module = f"otel_bridge.cli.{cmd_name.replace('-', '_')}"
        if cmd_name in _PACKAGES:
            module = f"{module}.command"
        command: object = importlib.import_module(module).command
        if isinstance(command, click.Command):
            return command
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is called, as click does.

        Raises:
            click.UsageError: There is none of the name; the message has the most similar one.
        """
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as exc:
            similar_names = difflib.get_close_matches(args[0], _COMMANDS, 1)
            if similar_names:
                message = (
                    f"{args[0]!r} is not a command; did you mean {similar_names[0]}?"
                )
                raise click.UsageError(message, exc.ctx) from None
            raise

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> object:
        """Execute the command; an error of otel-bridge is one line, and the exit code is that of `exit_code_of`.

        Wrong calls are left to click, which adds the usage; other exceptions are mistakes in the
        code, and keep their traceback.
        """
        try:
            return super().invoke(ctx)
        except click.UsageError:  # what was typed
            raise
        except (
            OtelBridgeError,
            click.ClickException,
        ) as exc:  # its text may hold names of runs and servers' answers
            echo(f"Error: {exc}", err=True)
            ctx.exit(exit_code_of(exc))


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: otel-bridge run --exporters trackio -- python train.py",
)
@click.version_option(version("otel-bridge"), prog_name="otel-bridge")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Emit OpenTelemetry once from an RL or LLM job; see one run in W&B, MLflow and Trackio.

    Exit codes: 0 done; 1 something failed or remains, and one line names it; 2 the call itself is
    wrong, or names a folder or a run that is not there. `run` returns the exit code of the command
    it ran.
    """
    # Once for all commands, which look below it.
    working_folder()
    # This process writes with the real packages. Only the command of `run` inherits the capture.
    release()
    os.environ.update(direct_variables(os.environ))
    # For `run`, whose command inherits the capture of this process's parent.
    ctx.obj = set_capture_aside()
