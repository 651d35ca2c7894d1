"""`vedette completion`: what a shell or an editor needs to complete what is typed."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from vedette.interfaces.cli.output import dumps, print_result

_SHELLS = ("bash", "zsh", "fish")
_FILES = ("agent", "bank", "settings")


@click.command()
@click.argument("what", type=click.Choice((*_SHELLS, *_FILES)))
def completion(what: str) -> None:
    """Print the script that completes verbs and options in a shell; or the JSON Schema of a file.

    \b
    bash:  eval "$(vedette completion bash)"
    zsh:   eval "$(vedette completion zsh)"
    fish:  vedette completion fish | source

    \b
    For an editor with the YAML language server, write the schema of agent.yaml, bank.yaml or
    vedette.toml (settings) beside the fleet and name it in the file:
      vedette completion agent > agent.schema.json
      # yaml-language-server: $schema=../../agent.schema.json
    """
    if what in _SHELLS:
        _print_script(what)
    else:
        _print_schema(what)


def _print_script(shell: str) -> None:
    found, ctx = get_completion_class(shell), click.get_current_context()
    if found is None:
        raise click.UsageError(f"{shell} is not known to this version of click", ctx)
    script = found(ctx.find_root().command, {}, "vedette", "_VEDETTE_COMPLETE").source()
    print_result({"shell": shell, "script": script}, script)


def _print_schema(file: str) -> None:
    from vedette.config.agent_file import agent_schema
    from vedette.config.bank import bank_schema
    from vedette.config.settings_file import settings_schema

    schemas = {"agent": agent_schema, "bank": bank_schema, "settings": settings_schema}
    click.echo(dumps(schemas[file]()))
