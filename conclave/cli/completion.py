"""The ``conclave completion`` command."""

import click
from click.shell_completion import get_completion_class

_CALLED_ONCE = '    _conclave_completion "$@"\n'
"""Click's end of the zsh script. Without a registration, only the first completion would work."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a shell completion script.

    Once for each user; the next shell that is started has it:

    \b
    bash, which needs the package bash-completion:
      D=~/.local/share/bash-completion/completions
      mkdir -p $D && conclave completion bash > $D/conclave

    \b
    zsh, with fpath+=(~/.zfunc) before compinit in ~/.zshrc:
      D=~/.zfunc
      mkdir -p $D && conclave completion zsh > $D/_conclave

    \b
    fish:
      set D ~/.config/fish/completions
      mkdir -p $D && conclave completion fish > $D/conclave.fish
    """  # noqa: D301 - the mark by which click keeps lines, so that they can be pasted
    made = get_completion_class(shell)
    if made is None:  # click has all three
        raise click.ClickException(f"no completion for {shell}")
    source = made(context.find_root().command, {}, "conclave", "_CONCLAVE_COMPLETE").source()
    click.echo(source.replace(_CALLED_ONCE, f"    compdef _conclave_completion conclave\n{_CALLED_ONCE}"), nl=False)
