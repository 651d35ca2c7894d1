"""An OPA server as policy engine, with the embedded one (or a deny) behind it."""

from __future__ import annotations

from vedette.adapters.policy_engines.opa.connection import OpaConnection, OpaUnavailable
from vedette.adapters.policy_engines.opa.engine import OpaEngine, OpaStage
from vedette.adapters.policy_engines.opa.local_server import LocalOpaServer

__all__ = ["LocalOpaServer", "OpaConnection", "OpaEngine", "OpaStage", "OpaUnavailable"]
