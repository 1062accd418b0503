"""`spark-replication completion`: the script by which a shell completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

PROGRAM = "spark-replication"
VARIABLE = "_SPARK_REPLICATION_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that has SHELL complete commands and options.

    \b
    bash: eval "$(spark-replication completion bash)"    in ~/.bashrc
    zsh:  eval "$(spark-replication completion zsh)"     in ~/.zshrc
    fish: spark-replication completion fish > ~/.config/fish/completions/spark-replication.fish
    """
    found = get_completion_class(shell)
    assert found is not None, "click knows these shells"
    click.echo(found(context.find_root().command, {}, PROGRAM, VARIABLE).source())
