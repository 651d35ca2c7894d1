"""What stands under `http:` of a tool in agent.yaml: a request that the engine makes itself."""

from __future__ import annotations

from typing import Any, Literal

from vedette.config.field import Field, Shape


class HttpQueryFile(Shape):
    """What asks the target whether the effect is there."""

    url: str = Field(description="the path, for example /v1/items?key={@key}")
    headers: dict[str, str] = Field(default_factory=dict)
    done: list[int] = Field(
        default_factory=lambda: [200], min_length=1, description="statuses that say it is there"
    )
    absent: list[int] = Field(
        default_factory=lambda: [404, 410], description="statuses that say it is not"
    )
    where: dict[str, str] = Field(
        default_factory=dict,
        description="JSON Pointers into the answer, and what must stand there; another value, null "
        "or too short a list says it is not there, and any other answer says nothing",
    )


class HttpFile(Shape):
    """The request of a tool. Its host and its credentials are the target's."""

    method: Literal["POST", "PUT", "PATCH", "DELETE"] = "POST"
    url: str = Field(description="the path, for example /v1/items/{item}")
    headers: dict[str, str] = Field(default_factory=dict)
    body: Any = Field(default=None, description="JSON in which {argument} is put in; or null")
    idempotency_header: str | None = Field(
        default=None, description="the header that takes the effect's key"
    )
    ok: list[int] = Field(
        default_factory=lambda: [200, 201, 202, 204],
        min_length=1,
        description="statuses that say it is done",
    )
    query: HttpQueryFile | None = Field(
        default=None, description="asks the target whether it is there"
    )
    verify: bool = Field(default=False, description="the query is asked after each call, too")
