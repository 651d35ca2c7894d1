"""`vedette completion SHELL`: what a shell needs to complete verbs and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from vedette.interfaces.cli.common import as_json_option, print_result


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@as_json_option
@click.pass_context
def completion(ctx: click.Context, shell: str, as_json: bool) -> None:
    """Print a script that completes verbs and options in SHELL.

    \b
    bash:  eval "$(vedette completion bash)"
    zsh:   eval "$(vedette completion zsh)"
    fish:  vedette completion fish | source
    """
    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"{shell} is not known to this version of click", ctx)
    maker = found(ctx.find_root().command, {}, "vedette", "_VEDETTE_COMPLETE")
    script = maker.source()
    print_result(as_json, {"shell": shell, "script": script}, script)
