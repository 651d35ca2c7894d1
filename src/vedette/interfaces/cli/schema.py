"""`vedette schema`: JSON Schemas for editors."""

from __future__ import annotations

import click

from vedette.interfaces.cli.common import as_json_option, dumps


@click.command()
@click.argument("what", type=click.Choice(["agent", "bank", "settings"]))
@as_json_option
def schema(what: str, as_json: bool) -> None:
    """Print the JSON Schema of agent.yaml, bank.yaml or vedette.toml (settings).

    \b
    For an editor with the YAML language server, write it beside the fleet and name it in the file:
      vedette schema agent > agent.schema.json
      # yaml-language-server: $schema=../../agent.schema.json
    """
    from vedette.config.agent_file import agent_schema
    from vedette.config.bank import bank_schema
    from vedette.config.settings_file import settings_schema

    made = {"agent": agent_schema, "bank": bank_schema, "settings": settings_schema}
    click.echo(dumps(made[what]()))
