"""A bundle as one signed file that an OPA server loads: a tar of its files, gzip around it.

The signature is OPA's (docs "Bundles", "Signing"): `.signatures.json` holds one ES256 JWT over the
hash of every other file. Nothing is left open: the same bundle, number and key always make the
same bytes, and `unpack` takes no others.

OPA loads three kinds of file: a manifest of ours, which names the revision; the modules; and
`data.json`, the data document as the engines of this process read it, so that no two readers of
YAML can differ on it. What else the bundle holds (the data files as people wrote them, tests, its
own manifest) travels beside, under names that OPA passes over: it would take the rules of a test
for part of the policy. So does what OPA compiled of the rules, for fleets that have no opa: a
server decides by the modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from msgspec import Struct

from vedette.adapters.bundles.key import PolicyKey
from vedette.adapters.bundles.signature import sign_claims, verify_token
from vedette.adapters.bundles.tar import read_tar, write_tar
from vedette.domain.base.canonical import canonical_json, sha256_hex
from vedette.domain.base.errors import BadPolicy
from vedette.domain.bundle import Bundle
from vedette.policy.bundle_data import DATA_NAMES, mount

MANIFEST = ".manifest"
SIGNATURES = ".signatures.json"
DATA = "data.json"
WASM = "policy.wasm.txt"
MAX_ARCHIVE_BYTES = 64 << 20

_ASIDE_SUFFIX = ".txt"


class Manifest(Struct, frozen=True):
    """The manifest of a bundle's archive: revision, signer and reason, all of it signed.

    `number` and `digest` are the revision; `signer` is who published it, `commit` and `reason` are
    their words, `at_us` is when (microseconds UTC). `key_id` tells the key it was signed with,
    `wasm` the digest of what was compiled of the rules, if that is there too.
    """

    number: int
    digest: str
    signer: str
    commit: str | None
    reason: str
    at_us: int
    key_id: str
    wasm: str | None = None

    @property
    def revision(self) -> str:
        """Return the revision as OPA shows it."""
        return format_revision(self.number, self.digest)


def format_revision(number: int, digest: str) -> str:
    """Return the text that stands as an OPA bundle's revision."""
    return f"{number} {digest}"


def parse_revision(revision: object) -> tuple[int, str] | None:
    """Return number and digest of an OPA bundle's revision text, None if it is none of ours."""
    if not isinstance(revision, str):
        return None
    number, _, digest = revision.partition(" ")
    if not (number.isascii() and number.isdigit() and len(number) < 16 and len(digest) == 64):
        return None
    return int(number), digest


def pack(
    bundle: Bundle,
    *,
    number: int,
    key: PolicyKey,
    signer: str,
    commit: str | None,
    reason: str,
    at_us: int,
    wasm: bytes | None = None,
) -> bytes:
    """Return a bundle's signed .tar.gz for OPA, as revision `number`; `wasm` travels with it.

    Raises BadPolicy for a bundle that holds other files than a policy folder's, or data or a
    manifest that cannot be read.
    """
    compiled = sha256_hex(wasm) if wasm is not None else None
    manifest = Manifest(number, bundle.digest, signer, commit, reason, at_us, key.id, compiled)
    files = {_archive_name(path): raw for path, raw in bundle.files.items()} | _generated_files(
        bundle, manifest
    )
    if wasm is not None:
        files[WASM] = wasm
    signed = sign_claims(_claims(files, manifest), key)
    return write_tar({SIGNATURES: canonical_json({"signatures": [signed]}), **files})


def unpack(raw: bytes, public: bytes) -> tuple[Bundle, Manifest]:
    """Return the bundle and the manifest of a signed .tar.gz that `pack` made.

    `public` is the PEM of the key that must have signed it. Raises BadPolicy for everything else
    than what `pack` made with that key: one bit changed anywhere is refused.
    """
    if len(raw) > MAX_ARCHIVE_BYTES:
        raise _bad_archive(f"is larger than {MAX_ARCHIVE_BYTES >> 20} MiB")
    members = read_tar(raw)
    try:
        signatures, manifest_raw = members.pop(SIGNATURES), members[MANIFEST]
    except KeyError as error:
        raise _bad_archive(f"lacks {error.args[0]}") from error
    # First of all: nothing that is not signed is looked at any further than that takes.
    claims, key_id = verify_token(_only_token(signatures), public)
    manifest = _read_manifest(manifest_raw)
    if (
        canonical_json(claims) != canonical_json(_claims(members, manifest))
        or manifest.key_id != key_id
    ):
        raise _bad_archive("holds other files than those that were signed")
    given = {
        _original_name(path): held
        for path, held in members.items()
        if path not in (MANIFEST, DATA, WASM)
    }
    wasm = members.get(WASM)
    if manifest.wasm != (sha256_hex(wasm) if wasm is not None else None):
        raise _bad_archive("holds another Wasm than the one that was signed")
    bundle = Bundle.of(given)
    made = _generated_files(bundle, manifest)
    if bundle.digest != manifest.digest or {name: members.get(name) for name in made} != made:
        raise _bad_archive("holds other bytes than those that were signed")
    if write_tar({SIGNATURES: signatures, **members}) != raw:
        raise _bad_archive("is not written as we write archives")
    return bundle, manifest


def _claims(files: Mapping[str, bytes], manifest: Manifest) -> dict[str, Any]:
    """Return what the JWT of an archive says."""
    hashes = [
        {"name": path, "hash": _hash(path, raw), "algorithm": "SHA-256"}
        for path, raw in sorted(files.items())
    ]
    return {"files": hashes, "iss": manifest.signer, "iat": manifest.at_us // 1_000_000}


def _hash(path: str, raw: bytes) -> str:
    """Return the hash of a file as OPA has it (opa v1/bundle/hash.go).

    OPA hashes data and manifest as its own JSON encoder writes them. Both are canonical JSON here,
    from which that encoder differs in two characters only.
    """
    if path in (MANIFEST, DATA):
        raw = raw.replace("\u2028".encode(), b"\\u2028").replace("\u2029".encode(), b"\\u2029")
    return sha256_hex(raw)


# --- what is made of a bundle -----------------------------------------------------------------


def _generated_files(bundle: Bundle, manifest: Manifest) -> dict[str, bytes]:
    """Return the files that OPA loads beside the modules."""
    roots, metadata = _roots_and_metadata(bundle)
    ours = {
        "number": manifest.number,
        "digest": manifest.digest,
        "signer": manifest.signer,
        "commit": manifest.commit,
        "reason": manifest.reason,
        "at": manifest.at_us,
        "key": manifest.key_id,
    }
    if manifest.wasm is not None:
        ours["wasm"] = manifest.wasm
    whole = {
        "revision": manifest.revision,
        "rego_version": 1,
        "roots": roots,
        "metadata": {**metadata, "vedette": ours},
    }
    return {MANIFEST: canonical_json(whole), DATA: canonical_json(mount(bundle.files))}


def _roots_and_metadata(bundle: Bundle) -> tuple[list[str], dict[str, Any]]:
    """Return the roots and the metadata that the policy folder names, or its folders."""
    original = bundle.files.get(MANIFEST)
    if original is None:
        folders = {path.rpartition("/")[0].partition("/")[0] for path in bundle.files}
        return [""] if "" in folders else sorted(folders), {}
    try:
        said = orjson.loads(original)
        return [str(root) for root in said["roots"]], dict(said.get("metadata") or {})
    except (ValueError, KeyError, TypeError) as error:
        raise BadPolicy(f"not a manifest: {error}", where=f"{MANIFEST}:1") from error


def _read_manifest(raw: bytes) -> Manifest:
    try:
        ours = orjson.loads(raw)["metadata"]["vedette"]
        manifest = Manifest(
            ours["number"], ours["digest"], ours["signer"], ours["commit"], ours["reason"],
            ours["at"], ours["key"], ours.get("wasm"),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError) as error:
        raise _bad_archive("has a manifest that is none of ours") from error
    texts = (manifest.digest, manifest.signer, manifest.reason, manifest.key_id)
    numbers = (manifest.number, manifest.at_us)
    if not (
        all(type(text) is str for text in texts)
        and all(type(number) is int and number >= 0 for number in numbers)
        and type(manifest.commit) in (str, type(None))
        and type(manifest.wasm) in (str, type(None))
    ):
        raise _bad_archive("has a manifest that is none of ours")
    return manifest


# --- names ------------------------------------------------------------------------------------


def _archive_name(path: str) -> str:
    """Return the name of a bundle's file in the archive: its own, or one that OPA passes over."""
    name = path.rpartition("/")[2]
    if name in DATA_NAMES or name.endswith("_test.rego") or path == MANIFEST:
        return path + _ASIDE_SUFFIX
    if name.endswith(".rego"):
        return path
    raise BadPolicy("is no file of a policy folder", where=path, mend="leave it out")


def _original_name(path: str) -> str:
    back = path.removesuffix(_ASIDE_SUFFIX)
    try:
        if _archive_name(back) == path:
            return back
    except BadPolicy:
        pass
    raise _bad_archive(f"holds {path!r}, which is no file of a policy folder")


def _only_token(raw: bytes) -> str:
    try:
        said = orjson.loads(raw)
        (only,) = said["signatures"]
    except (ValueError, KeyError, TypeError) as error:
        raise _bad_archive("has no signature that can be read") from error
    if not isinstance(only, str) or canonical_json({"signatures": [only]}) != raw:
        raise _bad_archive("has no signature that can be read")
    return only


def _bad_archive(why: str) -> BadPolicy:
    return BadPolicy(f"the archive {why}", mend="fetch it again from whoever published it")
