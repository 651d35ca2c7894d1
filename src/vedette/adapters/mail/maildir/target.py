"""The target `maildir`: a mailbox in files that tools act on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vedette.adapters.mail.maildir.plugin import check_maildir
from vedette.adapters.mail.target import MailTarget
from vedette.domain.target_record import TargetRecord


class MaildirTarget(MailTarget):
    """The target `maildir`: a mailbox in files that tools act on."""

    required = ("path",)
    path_is_folder = True
    record_keys = ("path",)
    place_keys = (("path",),)

    async def probe(self, table: Mapping[str, Any]) -> str:
        """Say whether it can be written, or made where it would be."""
        return check_maildir(Path(str(table["path"])), made=True)

    def read_record(self, table: Mapping[str, Any], where: str, since_us: int) -> TargetRecord:
        """Read where each mail lies."""
        from vedette.adapters.mail.maildir.record import drained_folders, read_mails

        return TargetRecord(mails=read_mails(table, where), drained_folders=drained_folders(table))


MAILDIR = MaildirTarget()
