"""The OpenAPI 3.1 document of the agents' API (https://spec.openapis.org/oas/v3.1.1)."""

from __future__ import annotations

from typing import Any

import vedette
from vedette.domain.client_call import MAX_KEY_CHARS
from vedette.operations.agent_calls import CALL_WAIT_S, MAX_WAIT_S

_TEXT = {"type": "string"}
_OBJECT = {"type": "object"}
_OUTCOME_WORDS = {
    "done": "it was performed; `data` is what the tool answered, or `withheld`",
    "denied": "policy or a person denied it; `reason` is the package that did",
    "refused": "it is no call of a tool that the agent declares; `why` says what is wrong",
    "failed": "the tool failed, or the run is a dead letter (`reason`), which a person may retry",
    "unknown": "it may have happened: the target was called and no answer is known. It is no `no`: "
    "look at the target before the same is called again under another key",
    "held": "it waits for what `waits` says; ask for the outcome after `after_s`",
    "pending": "it is not over yet; ask for the outcome after `after_s`",
}
_SCHEMAS: dict[str, Any] = {
    "Error": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["code", "what", "where", "mend"],
                "properties": {
                    "code": _TEXT,
                    "what": _TEXT,
                    "where": {"type": ["string", "null"]},
                    "mend": {"type": ["string", "null"]},
                },
            }
        },
    },
    "Tools": {
        "type": "object",
        "required": ["agent", "tools"],
        "additionalProperties": False,
        "properties": {
            "agent": {**_TEXT, "description": "the SPIFFE ID under which it is decided"},
            "tools": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["name", "description", "input_schema", "resource"],
                    "additionalProperties": False,
                    "properties": {
                        "name": _TEXT,
                        "description": _TEXT,
                        "input_schema": {**_OBJECT, "description": "JSON Schema of its arguments"},
                        "resource": {
                            "type": "object",
                            "required": ["type", "id"],
                            "additionalProperties": False,
                            "description": "what an evaluation names",
                            "properties": {"type": _TEXT, "id": _TEXT},
                        },
                    },
                },
            },
        },
    },
    "Call": {
        "type": "object",
        "required": ["tool"],
        "additionalProperties": False,
        "properties": {
            "tool": _TEXT,
            "args": {
                **_OBJECT,
                "description": "by name; a text `ref:/charter/…` or `ref:/registry/…` is the value "
                "there, and policy knows where it comes from",
            },
            "key": {
                "type": ["string", "null"],
                "minLength": 1,
                "maxLength": MAX_KEY_CHARS,
                "description": "calls with one key are one call; without it, calls with the same "
                "arguments within `[serve] call_window`",
            },
        },
    },
    "Outcome": {
        "type": "object",
        "required": ["status", "call"],
        "additionalProperties": False,
        "properties": {
            "status": {
                "enum": list(_OUTCOME_WORDS),
                "description": "; ".join(
                    f"{name}: {text}" for name, text in _OUTCOME_WORDS.items()
                ),
            },
            "call": {**_TEXT, "description": "the call's id, which is the run's"},
            "data": _OBJECT,
            "withheld": {"const": True},
            "reason": {"type": ["string", "null"]},
            "why": _TEXT,
            "waits": {
                "enum": ["approval", "time", "budget", "target", "resume", "policy", "person"]
            },
            "after_s": {"type": "integer", "minimum": 0},
        },
    },
    "Question": {
        "type": "object",
        "required": ["subject", "action", "resource"],
        "additionalProperties": False,
        "properties": {
            "subject": {
                "type": "object",
                "required": ["type", "id"],
                "properties": {"type": {"const": "agent"}, "id": _TEXT},
            },
            "action": {"type": "object", "required": ["name"], "properties": {"name": _TEXT}},
            "resource": {
                "type": "object",
                "required": ["type", "id"],
                "properties": {
                    "type": {**_TEXT, "description": "`resource.type` of the tool"},
                    "id": {**_TEXT, "description": "`resource.id` of the tool"},
                    "properties": {**_OBJECT, "description": "the arguments, as of a call"},
                },
            },
            "context": _OBJECT,
        },
    },
    "Decision": {
        "type": "object",
        "required": ["decision", "context"],
        "additionalProperties": False,
        "properties": {
            "decision": {"type": "boolean", "description": "true for a permit alone"},
            "context": {
                "type": "object",
                "required": ["outcome", "reason"],
                "properties": {
                    "outcome": {"enum": ["permit", "hold", "deny"]},
                    "reason": _TEXT,
                    "waits": _TEXT,
                    "why": _TEXT,
                },
            },
        },
    },
}
_ERRORS = {
    "400": "not as asked", "401": "no token that is good", "403": "another subject or Origin",
    "404": "no such call of yours", "408": "too slow", "409": "the key of another call, or erased",
    "413": "too large", "429": "too many", "503": "not now: send the same later",
}  # fmt: skip


def build_openapi() -> dict[str, Any]:
    """Return the OpenAPI document of the agents' API."""
    wait = {
        "name": "wait_s", "in": "query", "schema": {"type": "integer", "minimum": 0},
        "description": f"how long to wait if it is not over, at most {MAX_WAIT_S:.0f}",
    }  # fmt: skip
    named = {"name": "id", "in": "path", "required": True, "schema": _TEXT}
    return {
        "openapi": "3.1.1",
        "info": {"title": "vedette: the agents' API", "version": vedette.__version__},
        "security": [{"agent": []}],
        "paths": {
            "/v1/agent/tools": {
                "get": _operation("The tools that policy grants the agent now", "Tools"),
            },
            "/v1/agent/calls": {
                "post": {
                    **_operation(
                        f"Call a tool; answers within {CALL_WAIT_S:.0f} s", "Outcome", "400",
                        "408", "409", "413",
                    ),
                    "requestBody": _body("Call"),
                },
            },
            "/v1/agent/calls/{id}": {
                "get": {
                    **_operation("What came of a call", "Outcome", "400", "404"),
                    "parameters": [named, wait],
                },
            },
            "/access/v1/evaluation": {
                "post": {
                    **_operation(
                        "What policy would decide now (AuthZEN 1.0); nothing is done", "Decision",
                        "400", "408", "413",
                    ),
                    "requestBody": _body("Question"),
                },
            },
            "/v1/agent/openapi.json": {
                "get": {
                    "summary": "This document",
                    "security": [],
                    "responses": {"200": {"description": "OpenAPI", **_json(None)}},
                },
            },
        },
        "components": {
            "schemas": _SCHEMAS,
            "securitySchemes": {"agent": {"type": "http", "scheme": "bearer"}},
        },
    }  # fmt: skip


def _operation(summary: str, answer: str, *errors: str) -> dict[str, Any]:
    responses: dict[str, Any] = {"200": {"description": summary, **_json(answer)}}
    for status in sorted({"401", "403", "429", "503", *errors}):
        responses[status] = {"description": _ERRORS[status], **_json("Error")}
    return {"summary": summary, "responses": responses}


def _body(schema: str) -> dict[str, Any]:
    return {"required": True, **_json(schema)}


def _json(schema: str | None) -> dict[str, Any]:
    of = _OBJECT if schema is None else {"$ref": f"#/components/schemas/{schema}"}
    return {"content": {"application/json": {"schema": of}}}
