"""The commands' page: every command of the real application, and the shapes that a made one has."""

from __future__ import annotations

from typing import Annotated

import typer

from docs.generate.commands import commands_page
from uccl_ep.cli import app


def made() -> typer.Typer:
    one = typer.Typer(rich_markup_mode="rich")
    group = typer.Typer()
    one.add_typer(group, name="deep")

    @one.command()
    def first(
        name: Annotated[str, typer.Argument(help="Who.")],
        loud: Annotated[bool, typer.Option("--loud", help="[bold]Shout[/bold] at <name>.")] = False,
        times: Annotated[int, typer.Option("--times", "-n", help="How often.")] = 3,
    ) -> None:
        """Greets.

        Examples:

          first world --loud
        """

    @one.command(hidden=True)
    def secret() -> None:
        """Nobody sees it."""

    @group.command()
    def inner() -> None:
        """Below."""

    return one


def test_docs_commands_of_a_made_application() -> None:
    page = commands_page(made())
    assert "## uccl-ep first\n\nGreets.\n" in page
    assert "| `NAME` | Who. | required |" in page
    assert "| `--loud` | Shout at &lt;name>. |  |" in page
    assert "| `--times, -n` | How often. | `3` |" in page
    assert "```text\nfirst world --loud\n```" in page
    assert "## uccl-ep deep inner\n\nBelow.\n" in page and "## uccl-ep deep\n" not in page
    assert "secret" not in page


def test_docs_commands_has_all_of_ours() -> None:
    page = commands_page()
    group = typer.main.get_command(app)
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        if not command.hidden:
            assert f"## uccl-ep {name}" in page
    assert "uccl-ep demo --kill 2@step40" in page and "## uccl-ep bench transport" in page
