"""The source `maildir`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from vedette.config.settings import MaildirPlan
from vedette.config.settings_file import MaildirFile
from vedette.domain.base.clock import duration_us
from vedette.domain.base.errors import BadFleet
from vedette.domain.ports.plugin import SourceContext, SourcePlugin, TableContext

if TYPE_CHECKING:
    from vedette.domain.ports.sources import Source


class MaildirPlugin(SourcePlugin):
    """Mails out of a Maildir."""

    table = MaildirFile

    def plan(self, table: MaildirFile, context: TableContext) -> MaildirPlan:
        """Return the plan of a table."""
        origin = context.path(table.copy_from) if table.copy_from else None
        return MaildirPlan(
            table.name, context.path(table.path), origin, duration_us(table.every)
        )  # fmt: skip

    def build(self, plan: MaildirPlan, context: SourceContext) -> Source:
        """Make the source."""
        from vedette.adapters.mail.maildir import MaildirSource

        return MaildirSource(
            plan.name, plan.path, clock=context.clock, copy_from=plan.copy_from,
            watch=context.watch, poll_us=plan.every_us,
        )  # fmt: skip

    async def probe(self, plan: MaildirPlan) -> str:
        """Say whether the Maildir can be written, or made where it would be."""
        return check_maildir(plan.path, made=plan.copy_from is not None)


def check_maildir(path: Path, *, made: bool) -> str:
    """Look at a Maildir; where it is not there yet and is `made`, at the folder it would lie in.

    Raises BadFleet.
    """
    if path.is_dir():
        bad = [str(p) for p in (path, path / "new", path / "cur") if not os.access(p, os.W_OK)]
        if bad:
            raise BadFleet(f"cannot be written: {', '.join(bad)}", mend="see who owns it")
        return f"{path} can be written"
    if not made:
        raise BadFleet(f"there is no Maildir {path}", mend="set the path, or copy_from")
    there = next(folder for folder in path.parents if folder.exists())
    if not os.access(there, os.W_OK):
        raise BadFleet(f"{there} cannot be written", mend="see who owns it")
    return f"{path} is made when the fleet starts"


MAILDIR = MaildirPlugin()
