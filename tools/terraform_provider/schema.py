"""Cuts the schema of Terraform's Google provider out of its published bindings.

    python -m terraform_provider.schema WHEEL_FOLDER ALL.json

The bindings (`cdktf-cdktf-provider-google`) are generated from the provider's own schema and
carry it as jsii: a class per resource, a struct of its arguments, a struct per nested block. What
they do not say: whether a list is a set, what is sensitive, and which values force a new resource.
Source of the form: the jsii 1.x assembly specification; `tf_name` reads the anchor of each link
into the registry's documentation.
"""

from __future__ import annotations

import json
import re
import sys
import tarfile
from pathlib import Path
from typing import Any

Block = dict[str, Any]
Types = dict[str, dict[str, Any]]

_ANCHOR = re.compile(r"/docs/[^#\s}]*#([a-z0-9_]+)")
_KIND = re.compile(r"\{@link \S+ (google_[a-z0-9_]+)\}")
_BASES = {"cdktf.TerraformResource": "resources", "cdktf.TerraformDataSource": "data"}
_PRIMITIVES = {"string": "string", "number": "number", "boolean": "bool", "any": "dynamic"}
_WRITTEN = "_wo"  # by the provider's convention the end of a write-only argument's name
# What every class has from cdktf itself.
_OWN = {"cdktfTerraformResourceType", "tfResourceType", "fqn", "node", "terraformLabels"}


def snake(name: str) -> str:
    """Return a camelCase name as Terraform writes it."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def tf_name(prop: dict[str, Any]) -> str:
    """Return an argument's exact name in Terraform."""
    found = _ANCHOR.findall(prop.get("docs", {}).get("remarks", ""))
    return str(found[-1]) if found else snake(prop["name"])


def plain(kind: dict[str, Any]) -> dict[str, Any]:
    """Return a type without the arm of a union that stands for a value not known yet."""
    arms = kind.get("union", {}).get("types")
    if not arms:
        return kind
    real = [arm for arm in arms if arm.get("fqn") != "cdktf.IResolvable"]
    chosen: dict[str, Any] = next((arm for arm in real if "collection" in arm), real[0])
    return plain(chosen)


def wire_type(kind: dict[str, Any]) -> Any:
    """Return a type as the plugin protocol writes it, or None for a struct."""
    kind = plain(kind)
    if "primitive" in kind:
        return _PRIMITIVES[kind["primitive"]]
    if "collection" in kind:
        inner = wire_type(kind["collection"]["elementtype"])
        if inner is None:
            return None
        return ["map" if kind["collection"]["kind"] == "map" else "list", inner]
    return None


def struct_of(kind: dict[str, Any], types: Types) -> tuple[str, bool] | None:
    """Return the struct that a property's type comes to, and whether it may be repeated."""
    kind = plain(kind)
    many = "collection" in kind
    if many:
        kind = plain(kind["collection"]["elementtype"])
    fqn = str(kind.get("fqn", ""))
    return (fqn, many) if types.get(fqn, {}).get("datatype") else None


def block_of(fqn: str, types: Types, depth: int = 0) -> Block:
    """Return the arguments and nested blocks of a struct."""
    block: Block = {"attributes": {}, "blocks": {}}
    for prop in types[fqn].get("properties", ()):
        name, required = tf_name(prop), not prop.get("optional")
        struct = struct_of(prop["type"], types)
        if struct is None:
            kind = wire_type(prop["type"])
            if kind is not None:
                computed = not required and not name.endswith(_WRITTEN)
                block["attributes"][name] = [kind, required, not required, computed]
        elif depth < 12:  # a few blocks of the provider contain themselves
            inner, many = struct
            nesting = "single" if name == "timeouts" else "list"
            low = int(required and nesting == "list")
            high = 0 if many or nesting == "single" else 1
            block["blocks"][name] = [nesting, block_of(inner, types, depth + 1), low, high]
    return block


def resource(cls: dict[str, Any], config: str, types: Types) -> Block:
    """Return a resource: its arguments, and what the provider computes beside them."""
    block = block_of(config, types)
    known = {prop["name"] for prop in types[config].get("properties", ())}
    for prop in cls.get("properties", ()):
        name = prop["name"]
        if name in known or name in _OWN or name.endswith("Input") or prop.get("static"):
            continue
        kind = wire_type(prop["type"])
        if kind is not None:
            block["attributes"].setdefault(snake(name), [kind, False, False, True])
    return block


def extract(types: Types) -> dict[str, Any]:
    """Return every resource and data source of the bindings, and the provider's own arguments."""
    found: dict[str, Any] = {"resources": {}, "data": {}, "provider": {}}
    for fqn, cls in types.items():
        base = str(cls.get("base", ""))
        config = f"{fqn}Config"
        if base == "cdktf.TerraformProvider":
            found["provider"] = block_of(config, types)
            found["provider"]["attributes"].pop("alias", None)
        named = _KIND.search(cls.get("docs", {}).get("summary", ""))
        if base in _BASES and named and config in types:
            found[_BASES[base]][named[1]] = resource(cls, config, types)
    return found


def main(folder: str, to: str) -> None:
    """Write the whole schema of the bindings installed in a folder as one JSON file."""
    archive = next(Path(folder).glob("cdktf_cdktf_provider_google/_jsii/provider-google@*.tgz"))
    with tarfile.open(archive) as tar:
        member = tar.extractfile("package/.jsii")
        if member is None:
            raise SystemExit(f"{archive.name} holds no jsii assembly")
        types: Types = json.load(member)["types"]
    Path(to).write_text(json.dumps(extract(types), separators=(",", ":")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
