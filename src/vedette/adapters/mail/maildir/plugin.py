"""The source `maildir`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from vedette.adapters.mail.maildir.config import MaildirFile
from vedette.domain.base.clock import duration_us
from vedette.domain.base.errors import BadFleet
from vedette.domain.ports.plugin import SourceContext, SourcePlugin, TableContext

if TYPE_CHECKING:
    from vedette.domain.ports.sources import Source


class MaildirPlugin(SourcePlugin):
    """Mails out of a Maildir."""

    table = MaildirFile

    def plan(self, table: MaildirFile, context: TableContext) -> MaildirFile:
        """Return the table with its paths resolved."""
        plan: MaildirFile = context.resolve(table, "copy_from")
        return plan

    def build(self, plan: MaildirFile, context: SourceContext) -> Source:
        """Make the source."""
        from vedette.adapters.mail.maildir.source import MaildirSource

        return MaildirSource(
            plan.name, plan.path, clock=context.clock, copy_from=plan.copy_from,
            watch=context.watch, poll_us=duration_us(plan.every),
        )  # fmt: skip

    async def probe(self, plan: MaildirFile) -> str:
        """Say whether the Maildir can be written, or made where it would be."""
        return check_maildir(Path(plan.path), made=plan.copy_from is not None)


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
