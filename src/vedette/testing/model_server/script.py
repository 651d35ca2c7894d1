"""Scripts that are ready to be used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vedette.testing.model_server.turn import FunctionCall, Request, Script, Thinking, Turn

Arguments = Mapping[str, Any] | Callable[[Request], Mapping[str, Any]]


def mail_agent(
    tool: str = "mail_file", args: Arguments | None = None, text: str = "Filed."
) -> Script:
    """Return the script of an agent that calls one tool and, told what came of it, says `text`.

    `args` are the arguments of the call, or what makes them of the request.
    """

    def script(request: Request) -> Turn:
        if request.results:
            return Turn((text,))
        made = args(request) if callable(args) else args
        return Turn((Thinking("Where does it belong?"), FunctionCall(tool, made or {})))

    return script
