"""Signed bundle archives: read back byte for byte, taken by a real OPA, refused once changed."""

from __future__ import annotations

import base64
import gzip
import json
import random
import stat
import subprocess
import tracemalloc
from pathlib import Path

import orjson
import pytest
from tests.opa import find_opa
from tests.opa_server import OpaServer

from vedette.adapters.bundles import (
    KEY_FILE,
    PUBLIC_FILE,
    PolicyKey,
    format_revision,
    pack,
    parse_revision,
    unpack,
)
from vedette.adapters.bundles.archive import SIGNATURES
from vedette.adapters.bundles.tar import read_tar, write_tar
from vedette.adapters.policy_engines.regorus.stage import read_bundle
from vedette.domain.base import failpoint
from vedette.domain.base.canonical import sha256_hex
from vedette.domain.base.errors import BadPolicy, BadStore
from vedette.domain.bundle import Bundle
from vedette.testing.faults import run_in_child

BUNDLE = read_bundle(Path(__file__).parents[4] / "policies")
# What JSON encoders write differently: OPA hashes a manifest as its own encoder writes it.
ODD = "why \u2028 <&> \x01\b\x7f \u00e9 \U0001f6a2"


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> PolicyKey:
    return PolicyKey.open(tmp_path_factory.mktemp("key"))


@pytest.fixture(scope="module")
def raw(key: PolicyKey) -> bytes:
    return packed(key)


def packed(key: PolicyKey, bundle: Bundle = BUNDLE, number: int = 7) -> bytes:
    return pack(
        bundle, number=number, key=key, signer="person:ada", commit="c0ffee", reason=ODD,
        at_us=1_795_257_600_123_456,
    )  # fmt: skip


# --- there and back -----------------------------------------------------------------------------


def test_unpacked_is_what_was_packed(key: PolicyKey, raw: bytes) -> None:
    bundle, manifest = unpack(raw, key.public)
    assert bundle == BUNDLE
    assert (manifest.number, manifest.digest, manifest.key_id) == (7, BUNDLE.digest, key.id)
    assert (manifest.signer, manifest.commit, manifest.reason) == ("person:ada", "c0ffee", ODD)
    assert manifest.at_us == 1_795_257_600_123_456
    assert parse_revision(manifest.revision) == (7, BUNDLE.digest)


def test_same_bundle_same_bytes(key: PolicyKey, raw: bytes) -> None:
    backwards = Bundle.of(dict(reversed(list(BUNDLE.files.items()))))
    assert packed(key, backwards) == raw
    assert packed(key, number=8) != raw


@pytest.mark.parametrize(
    "files",
    [
        {"a.rego": b"package a\n"},
        {"data.json": b'{"b": [1, "\\u2028"]}', "deep/" + "x" * 90 + "/data.yaml": b"c: true\n"},
        {"a/b/c.rego": b"package a.b\n", "a/b/c_test.rego": b"package a.b\n"},
    ],
)
def test_a_bundle_without_a_manifest(key: PolicyKey, files: dict[str, bytes]) -> None:
    bundle = Bundle.of(files)
    assert unpack(packed(key, bundle), key.public)[0] == bundle


@pytest.mark.parametrize("path", ["notes.md", "data.yml", "a/.manifest", "policy.wasm"])
def test_what_is_no_policy_file_is_not_packed(key: PolicyKey, path: str) -> None:
    with pytest.raises(BadPolicy, match="no file of a policy folder"):
        packed(key, Bundle.of({"a.rego": b"package a\n", path: b"{}"}))


@pytest.mark.parametrize(
    "text", ["", "7", f"x {'a' * 64}", f"7 {'a' * 63}", f"-1 {'a' * 64}", None]
)
def test_a_revision_of_others_tells_nothing(text: str | None) -> None:
    assert parse_revision(text) is None
    assert parse_revision(format_revision(7, "a" * 64)) == (7, "a" * 64)


def test_the_container_has_the_bytes_that_it_always_had() -> None:
    """Archives are signed and known by their digest: these are those of the first version."""
    files = {
        ".manifest": b"{}", "empty.rego": b"", "a/b.rego": b"package a.b\n" * 11_000,
        "deep/" + "x" * 90 + "/" + "y" * 60 + "/data.json": "é\n".encode() * 512,
    }  # fmt: skip
    raw = write_tar(files)
    assert len(raw) == 137_249
    assert sha256_hex(raw) == "d7f75d46ff445ab73ff9652e53d0680c45ae34f837cd01532ddcfd3e6ddba028"
    assert read_tar(raw) == files


# --- changed ------------------------------------------------------------------------------------


def test_one_bit_changed_anywhere_is_refused(key: PolicyKey, raw: bytes) -> None:
    chance = random.Random(20261121)
    places = set(chance.sample(range(len(raw) * 8), 600))
    places |= set(range(200)) | set(range(len(raw) * 8 - 200, len(raw) * 8))
    for place in places:
        changed = bytearray(raw)
        changed[place // 8] ^= 1 << place % 8
        with pytest.raises(BadPolicy):
            unpack(bytes(changed), key.public)
    assert unpack(raw, key.public)  # the control: it is the change that is refused


def test_cut_or_lengthened_is_refused(key: PolicyKey, raw: bytes) -> None:
    for other in (b"", raw[:-1], raw[: len(raw) // 2], raw + b"\0", raw + raw):
        with pytest.raises(BadPolicy):
            unpack(other, key.public)


def test_what_was_compressed_is_refused_before_it_swells(key: PolicyKey, raw: bytes) -> None:
    for other in (gzip.compress(gzip.decompress(raw)), gzip.compress(bytes(256 << 20), 1)):
        tracemalloc.start()
        with pytest.raises(BadPolicy, match="the archive is"):
            unpack(other, key.public)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
        tracemalloc.stop()


def test_signed_with_another_key_is_refused(raw: bytes, tmp_path: Path) -> None:
    other = PolicyKey.open(tmp_path)
    with pytest.raises(BadPolicy, match="another key"):
        unpack(raw, other.public)


def resealed(raw: bytes, change: dict[str, bytes | None]) -> bytes:
    """Return an archive with members changed and the container mended, the signature left."""
    members = read_tar(raw)
    for path, held in change.items():
        if held is None:
            del members[path]
        else:
            members[path] = held
    return write_tar(members)


@pytest.mark.parametrize(
    "change",
    [
        {"vedette/denies/denies.rego": b"package vedette.denies\nok := true\n"},
        {"vedette/denies/denies.rego": None},
        {"vedette/denies/more.rego": b"package vedette.denies\n"},
        {"denies/data.yaml.txt": b"complete: true\n"},
        {"data.json": b"{}"},
        {"vedette/grant/grant_test.rego.txt": b""},
        {".manifest.txt": b"{}"},
        {".manifest": None},
        {SIGNATURES: None},
        {SIGNATURES: b'{"signatures":[]}'},
    ],
)
def test_a_member_changed_below_an_intact_container_is_refused(
    key: PolicyKey, raw: bytes, change: dict[str, bytes | None]
) -> None:
    with pytest.raises(BadPolicy):
        unpack(resealed(raw, change), key.public)


def test_a_manifest_of_another_revision_is_refused(key: PolicyKey, raw: bytes) -> None:
    """An old archive under a new number would be a rollback that nobody signed."""
    newer = read_tar(packed(key, number=9))[".manifest"]
    with pytest.raises(BadPolicy, match="other files"):
        unpack(resealed(raw, {".manifest": newer}), key.public)


def forged(raw: bytes, header: dict[str, str], signature: bytes | None = None) -> bytes:
    token = json.loads(read_tar(raw)[SIGNATURES])["signatures"][0]
    _, payload, old = token.split(".")
    kept = old if signature is None else _text(signature)
    signed = f"{_text(json.dumps(header).encode())}.{payload}.{kept}"
    return resealed(raw, {SIGNATURES: orjson.dumps({"signatures": [signed]})})


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def test_a_signature_of_another_kind_is_refused(key: PolicyKey, raw: bytes) -> None:
    for header, signature in (
        ({"alg": "none"}, b""),
        ({"alg": "HS256", "kid": key.id}, b"x" * 32),
        ({"alg": "ES256", "kid": "other"}, None),
        ({"alg": "ES256", "kid": key.id, "typ": "JWT"}, b"\0" * 64),
    ):
        with pytest.raises(BadPolicy):
            unpack(forged(raw, header, signature), key.public)


def test_the_second_form_of_a_signature_is_refused(key: PolicyKey, raw: bytes) -> None:
    """Anybody can turn (r, s) into (r, n - s): both verify, and an archive must have one digest."""
    token = json.loads(read_tar(raw)[SIGNATURES])["signatures"][0]
    message, _, signature = token.rpartition(".")
    both = base64.urlsafe_b64decode(signature + "==")
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    high = both[:32] + (order - int.from_bytes(both[32:], "big")).to_bytes(32, "big")
    other = orjson.dumps({"signatures": [f"{message}.{_text(high)}"]})
    with pytest.raises(BadPolicy, match="signature is wrong"):
        unpack(resealed(raw, {SIGNATURES: other}), key.public)


def test_a_key_that_is_none_is_said_so(raw: bytes) -> None:
    with pytest.raises(BadPolicy, match="no public key"):
        unpack(raw, b"-----BEGIN PUBLIC KEY-----\n")


# --- the key ------------------------------------------------------------------------------------


def test_the_key_is_made_once_and_is_its_owners_alone(tmp_path: Path) -> None:
    first = PolicyKey.open(tmp_path / "state")
    path = tmp_path / "state" / KEY_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (tmp_path / "state" / PUBLIC_FILE).read_bytes() == first.public
    repeat = PolicyKey.open(tmp_path / "state")
    assert (repeat.public, repeat.id) == (first.public, first.id)
    left = {path.name for path in (tmp_path / "state").iterdir()}
    assert left == {KEY_FILE, PUBLIC_FILE}


def test_a_key_that_is_damaged_or_not_its_halfs_is_refused(tmp_path: Path) -> None:
    PolicyKey.open(tmp_path)
    (tmp_path / PUBLIC_FILE).write_bytes(PolicyKey.open(tmp_path / "other").public)
    with pytest.raises(BadStore, match="not the public half"):
        PolicyKey.open(tmp_path)
    (tmp_path / KEY_FILE).write_bytes(b"nothing")
    with pytest.raises(BadStore, match="not a policy key"):
        PolicyKey.open(tmp_path)


@pytest.mark.forks
@pytest.mark.parametrize("at", range(1, 7))
def test_killed_while_the_key_is_made_it_is_made_whole(tmp_path: Path, at: int) -> None:
    run_in_child(lambda: PolicyKey.open(tmp_path), die_at=at)
    key = PolicyKey.open(tmp_path)
    assert (tmp_path / PUBLIC_FILE).read_bytes() == key.public
    assert failpoint.hook is None


# --- a real OPA ---------------------------------------------------------------------------------


def by_opa(archive: Path, public: Path) -> str:
    """Return what a real OPA says against an archive; empty if it takes it."""
    done = subprocess.run(
        [
            find_opa(), "build", "--bundle", str(archive), "--verification-key", str(public),
            "--signing-alg", "ES256", "--output", str(archive.with_suffix(".out")),
        ],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return "" if done.returncode == 0 else done.stderr + done.stdout


def test_opa_takes_the_archive_and_no_changed_one(
    key: PolicyKey, raw: bytes, tmp_path: Path
) -> None:
    archive, public = tmp_path / "bundle.tar.gz", tmp_path / "policy.pub"
    archive.write_bytes(raw)
    public.write_bytes(key.public)
    assert by_opa(archive, public) == ""
    place = raw.index(b"package vedette.denies") + 9
    archive.write_bytes(raw[:place] + b"w" + raw[place + 1 :])
    assert "digest mismatch" in by_opa(archive, public)
    manifest = read_tar(packed(key, number=9))[".manifest"]
    archive.write_bytes(resealed(raw, {".manifest": manifest}))
    assert "digest mismatch" in by_opa(archive, public)
    archive.write_bytes(resealed(raw, {SIGNATURES: None}))
    assert "missing .signatures.json" in by_opa(archive, public)
    archive.write_bytes(raw)
    public.write_bytes(PolicyKey.open(tmp_path / "other").public)
    assert "failed to verify" in by_opa(archive, public)


def test_opa_does_not_load_the_rules_of_tests(tmp_path: Path) -> None:
    """A test that says `ok` in a policy's package would open the gate where it were loaded."""
    files = {**BUNDLE.files, "vedette/denies/zz_test.rego": b"package vedette.denies\nbad := 1\n"}
    server = OpaServer(tmp_path)
    server.pack(Bundle.of(files))
    raw = server.archive.read_bytes()
    assert unpack(raw, server.key.public)[0].files == files
    done = subprocess.run(
        [find_opa(), "eval", "--bundle", str(server.archive), "data.vedette.denies"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    said = json.loads(done.stdout)["result"][0]["expressions"][0]["value"]
    assert "deny" in said
    assert "bad" not in said
    assert not [name for name in said if name.startswith("test_")]
