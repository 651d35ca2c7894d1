"""`vedette explain-error CODE`: what an error means and what to do about it."""

from __future__ import annotations

import textwrap

import click

from vedette.domain.base.errors import NotFound
from vedette.interfaces.cli.common import as_json_option, say
from vedette.interfaces.cli.error_codes import LESSONS, Lesson


@click.command()
@click.argument("code", required=False)
@as_json_option
def explain_error(code: str | None, as_json: bool) -> None:
    """Tell what the error CODE means, how it comes about, and the mend. Without CODE, list all.

    The code stands in brackets after `error`, and in the `code` of an error in JSON.
    """
    if code is None:
        told = {name: _object(name, lesson) for name, lesson in LESSONS.items()}
        width = max(map(len, LESSONS))
        lines = [
            textwrap.fill(
                lesson.means, 80, initial_indent=name.ljust(width + 2),
                subsequent_indent=" " * (width + 2),
            )
            for name, lesson in LESSONS.items()
        ]  # fmt: skip
        say(as_json, {"codes": list(told.values())}, "\n".join(lines))
        return
    lesson = LESSONS.get(code.strip().strip("[]"))
    if lesson is None:
        from vedette.config.problem import did_you_mean

        raise NotFound(f"there is no error code {code!r}", mend=did_you_mean(code, list(LESSONS)))
    say(as_json, _object(code, lesson), _page(code, lesson))


def _object(code: str, lesson: Lesson) -> dict[str, str]:
    return {"code": code, "means": lesson.means, "because": lesson.because, "mend": lesson.mend}


def _page(code: str, lesson: Lesson) -> str:
    parts = [("means", lesson.means), ("because", lesson.because), ("mend", lesson.mend)]
    lines = [code]
    for name, text in parts:
        lines.append(
            textwrap.fill(
                text, 80, initial_indent=f"  {name:<8} ", subsequent_indent=" " * 11,
                break_on_hyphens=False,
            )
        )  # fmt: skip
    return "\n".join(lines)
