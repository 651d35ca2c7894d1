"""Ollama, and whoever LiteLLM serves, by ADK's own model of it."""

from __future__ import annotations

import os
from typing import Any

import litellm
import mcp  # noqa: F401 (what `acompletion` imports when it is first asked)
from google.adk.models.lite_llm import LiteLlm

from vedette.config.models import ModelPlan
from vedette.domain.base.errors import BadFleet

litellm.suppress_debug_info = True  # else it prints what went wrong
# ADK imports it when it is first asked, which would hold up whoever else is asked meanwhile.
_ = litellm.acompletion


def build_litellm(plan: ModelPlan, key: str, base_url: str, timeout_s: float) -> LiteLlm:
    """Return ADK's model of an entry; without `base_url` LiteLLM finds its server by its prefix.

    Raises BadFleet if LiteLLM does not know whom to ask, or the environment would say whom.
    """
    name = plan.served_name
    if plan.provider == "ollama":
        name = f"ollama_chat/{name}"
    else:
        _check_prefix(plan)
    given: dict[str, Any] = {"timeout": timeout_s, "num_retries": 0, "max_retries": 0}
    if base_url:
        given["api_base"] = base_url
    # Never none, or it looks for one in the environment.
    given["api_key"] = key or "none"
    return LiteLlm(model=name, **given)


def _check_prefix(plan: ModelPlan) -> None:
    try:
        _, provider, _, _ = litellm.get_llm_provider(plan.served_name)
    except litellm.exceptions.BadRequestError:
        what = f"LiteLLM knows no provider of {plan.served_name!r}"
        mend = 'write model = "PROVIDER/NAME", as its list of providers has it'
        raise BadFleet(what, where=f"{plan.where}.model", mend=mend) from None
    for end in ("API_BASE", "BASE_URL"):
        variable = f"{provider}_{end}".upper()
        if plan.base_url is None and variable in os.environ:
            what = f"the environment names another server than the entry does ({variable})"
            raise BadFleet(what, where=plan.where, mend="write base_url = here, or unset it")
