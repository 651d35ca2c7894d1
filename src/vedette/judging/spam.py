"""Spam or not, with a bar of its own: words and make of a mail, compared with reviewed mails.

Nine folders compete for a mail by their words; whether it is spam is asked apart, by words and by
how the mail is made (`mail_features`), and ham in the junk folder costs more than spam in the
inbox. So a mail is called spam only above a bar that the examples themselves support.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from vedette.judging.binary_classifier import NO, YES, BinaryClassifier, Chance
from vedette.judging.examples import Example
from vedette.judging.features import Lexicon
from vedette.judging.mail_features import mail_features
from vedette.judging.side_features import Extra

SPAM = "spam"
_WEIGHT = 0.25  # of equal make in the kernel, where equal words count 1
_SPARED = 0.999  # share of ham that is to stay where it is, as far as the examples can tell


class SpamBank:
    """Says how likely a mail is spam, and from which chance on it may be filed as such."""

    def __init__(self, examples: Sequence[Example], lexicon: Lexicon | None = None) -> None:
        """Learn from examples labelled spam; every other label is ham. `facts` is the mail's data.

        `lexicon` is shared with a bank that judges the same `mail_words`, to read them once.
        Raises ValueError where there is no example of one of the two.
        """
        labelled = [replace(e, label=YES if e.label == SPAM else NO) for e in examples]
        self._binary = BinaryClassifier(
            labelled, extra=Extra(mail_features, _WEIGHT), lexicon=lexicon
        )
        self.bar = max(0.5, self._binary.bar(_SPARED))

    def chance(self, data: Mapping[str, Any]) -> Chance:
        """Return how likely the mail is spam; `data` is that of its `mail.received` event."""
        return self._binary.chance(mail_words(data), data)


def mail_words(data: Mapping[str, Any]) -> str:
    """Return the words by which example banks compare a mail, the subject first."""
    subject, body = str(data.get("subject") or ""), str(data.get("text") or "")
    return f"Subject: {subject or '(no subject)'}\n\n{body}"
