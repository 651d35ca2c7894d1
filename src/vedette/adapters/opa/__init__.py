"""An OPA server as policy engine, with the embedded one (or a deny) behind it."""

from __future__ import annotations

from vedette.adapters.opa.engine import OpaEngine, OpaStage
from vedette.adapters.opa.link import NoAnswer, OpaLink
from vedette.adapters.opa.own_server import OwnServer

__all__ = ["NoAnswer", "OpaEngine", "OpaLink", "OpaStage", "OwnServer"]
