"""The ``conclave completion`` command."""

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what makes a shell complete commands, options and files.

    For bash, once: conclave completion bash > ~/.local/share/bash-completion/completions/conclave. For zsh, into the
    file _conclave in a folder of $fpath; for fish, into ~/.config/fish/completions/conclave.fish.
    """
    made = get_completion_class(shell)
    if made is None:  # click has all three
        raise click.ClickException(f"no completion for {shell}")
    click.echo(made(context.find_root().command, {}, "conclave", "_CONCLAVE_COMPLETE").source(), nl=False)
