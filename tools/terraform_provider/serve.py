"""A stand-in for Terraform's Google provider: it knows every resource's shape and does nothing.

    python serve.py SCHEMA.json SOCKET

Enough for `init`, `validate` and, with `mock_provider`, `test`: Terraform itself checks names,
types and required arguments against the schema, and asks a mocked provider for nothing else.
Whoever asks this one to plan or apply gets UNIMPLEMENTED. Protocol: Terraform plugin protocol 6
over gRPC. The one line printed is what Terraform takes as TF_REATTACH_PROVIDERS, so one process
serves any number of commands; started by Terraform, one for each module and run, tests took ten
times as long.
"""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped,unused-ignore]

# These come with the tool's own environment (tools/terraform-requirements.lock).
from tf.gen import (  # type: ignore[import-not-found,unused-ignore]
    grpc_controller_pb2,
    grpc_controller_pb2_grpc,
    grpc_stdio_pb2_grpc,
    tfplugin_pb2,
    tfplugin_pb2_grpc,
)

SOURCE = "registry.terraform.io/hashicorp/google"
_NESTING = {"single": 1, "list": 2}
# Field 11 of Schema.Attribute, `write_only`: newer than the compiled protocol, older than
# Terraform 1.11. By the provider's convention such an argument's name ends so.
_WRITE_ONLY = b"\x58\x01"
_WRITTEN = "_wo"


def attribute(name: str, description: list[Any]) -> Any:
    """Return one attribute; `description` is its type, and whether required, optional, computed."""
    kind, required, optional, computed = description
    made = tfplugin_pb2.Schema.Attribute(
        name=name,
        type=json.dumps(kind).encode(),
        required=required,
        optional=optional,
        computed=computed,
    )
    if name.endswith(_WRITTEN):
        made.MergeFromString(_WRITE_ONLY)
    return made


def block(description: dict[str, Any]) -> Any:
    """Return a block with its attributes and the blocks in it."""
    return tfplugin_pb2.Schema.Block(
        attributes=[
            attribute(name, one) for name, one in sorted(description["attributes"].items())
        ],
        block_types=[
            tfplugin_pb2.Schema.NestedBlock(
                type_name=name,
                block=block(inner),
                nesting=_NESTING[nesting],
                min_items=low,
                max_items=high,
            )
            for name, (nesting, inner, low, high) in sorted(description["blocks"].items())
        ],
    )


class Provider(tfplugin_pb2_grpc.ProviderServicer):  # type: ignore[misc,unused-ignore]
    """Answers what `init`, `validate` and a mocked `test` ask."""

    def __init__(self, schema: dict[str, Any]) -> None:
        def schemas(kind: str) -> dict[str, Any]:
            return {
                name: tfplugin_pb2.Schema(version=0, block=block(description))
                for name, description in schema[kind].items()
            }

        self._schema = tfplugin_pb2.GetProviderSchema.Response(
            provider=tfplugin_pb2.Schema(version=0, block=block(schema["provider"])),
            resource_schemas=schemas("resources"),
            data_source_schemas=schemas("data"),
            server_capabilities={"get_provider_schema_optional": True},
        )

    def GetProviderSchema(self, request: Any, context: Any) -> Any:
        return self._schema

    def ValidateProviderConfig(self, request: Any, context: Any) -> Any:
        return tfplugin_pb2.ValidateProviderConfig.Response()

    def ValidateResourceConfig(self, request: Any, context: Any) -> Any:
        return tfplugin_pb2.ValidateResourceConfig.Response()

    def ValidateDataResourceConfig(self, request: Any, context: Any) -> Any:
        return tfplugin_pb2.ValidateDataResourceConfig.Response()

    def ConfigureProvider(self, request: Any, context: Any) -> Any:
        return tfplugin_pb2.ConfigureProvider.Response()

    def StopProvider(self, request: Any, context: Any) -> Any:
        return tfplugin_pb2.StopProvider.Response()


class Controller(grpc_controller_pb2_grpc.GRPCControllerServicer):  # type: ignore[misc,unused-ignore]
    """go-plugin would end the process; the one who started it does."""

    def Shutdown(self, request: Any, context: Any) -> Any:
        return grpc_controller_pb2.Empty()


class Stdio(grpc_stdio_pb2_grpc.GRPCStdioServicer):  # type: ignore[misc,unused-ignore]
    """go-plugin asks for the plugin's output; there is none."""

    def StreamStdio(self, request: Any, context: Any) -> Any:
        return iter(())


def main(schema: str, address: str) -> None:
    """Serve on a Unix socket until killed, or until whoever started us goes away."""
    parent = os.getppid()
    server = grpc.server(ThreadPoolExecutor(max_workers=4))
    provider = Provider(json.loads(Path(schema).read_text(encoding="utf-8")))
    tfplugin_pb2_grpc.add_ProviderServicer_to_server(provider, server)
    grpc_controller_pb2_grpc.add_GRPCControllerServicer_to_server(Controller(), server)
    grpc_stdio_pb2_grpc.add_GRPCStdioServicer_to_server(Stdio(), server)
    server.add_insecure_port(f"unix:{address}")
    server.start()
    handshake = {
        "Protocol": "grpc",
        "ProtocolVersion": 6,
        "Pid": os.getpid(),
        "Test": True,
        "Addr": {"Network": "unix", "String": address},
    }
    print(json.dumps({SOURCE: handshake}), flush=True)
    while os.getppid() == parent:
        time.sleep(1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
