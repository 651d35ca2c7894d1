"""An OPA server as policy engine, with the embedded one (or a deny) behind it."""

from __future__ import annotations

from vedette.adapters.policy_engines.opa.connection import NoAnswer, OpaLink
from vedette.adapters.policy_engines.opa.engine import OpaEngine, OpaStage
from vedette.adapters.policy_engines.opa.own_server import OwnServer

__all__ = ["NoAnswer", "OpaEngine", "OpaLink", "OpaStage", "OwnServer"]
