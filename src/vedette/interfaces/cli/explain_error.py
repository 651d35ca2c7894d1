"""`vedette explain-error CODE`: what an error means and what to do about it."""

from __future__ import annotations

import textwrap

import click

from vedette.domain.base.errors import NotFound
from vedette.interfaces.cli.common import as_json_option, print_result
from vedette.interfaces.cli.error_codes import EXPLANATIONS, ErrorExplanation


@click.command()
@click.argument("code", required=False)
@as_json_option
def explain_error(code: str | None, as_json: bool) -> None:
    """Tell what the error CODE means, how it comes about, and the mend. Without CODE, list all.

    The code stands in brackets after `error`, and in the `code` of an error in JSON.
    """
    if code is None:
        told = {name: _to_json(name, lesson) for name, lesson in EXPLANATIONS.items()}
        width = max(map(len, EXPLANATIONS))
        lines = [
            textwrap.fill(
                lesson.meaning, 80, initial_indent=name.ljust(width + 2),
                subsequent_indent=" " * (width + 2),
            )
            for name, lesson in EXPLANATIONS.items()
        ]  # fmt: skip
        print_result(as_json, {"codes": list(told.values())}, "\n".join(lines))
        return
    explanation = EXPLANATIONS.get(code.strip().strip("[]"))
    if explanation is None:
        from vedette.config.problem import did_you_mean

        raise NotFound(
            f"there is no error code {code!r}", mend=did_you_mean(code, list(EXPLANATIONS))
        )
    print_result(as_json, _to_json(code, explanation), _format_page(code, explanation))


def _to_json(code: str, explanation: ErrorExplanation) -> dict[str, str]:
    return {
        "code": code,
        "means": explanation.meaning,
        "because": explanation.cause,
        "mend": explanation.mend,
    }


def _format_page(code: str, explanation: ErrorExplanation) -> str:
    parts = [
        ("means", explanation.meaning),
        ("because", explanation.cause),
        ("mend", explanation.mend),
    ]
    lines = [code]
    for name, text in parts:
        lines.append(
            textwrap.fill(
                text, 80, initial_indent=f"  {name:<8} ", subsequent_indent=" " * 11,
                break_on_hyphens=False,
            )
        )  # fmt: skip
    return "\n".join(lines)
