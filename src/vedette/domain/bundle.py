"""A Bundle: the policy folder as one content-addressed thing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from vedette.domain.base.canonical import canonical_json, sha256_hex
from vedette.domain.base.errors import BadPolicy

ENTRYPOINT = "data.vedette.gateway.decision"
# The same as OPA's commands and API have it.
ENTRY_PATH = ENTRYPOINT.removeprefix("data.").replace(".", "/")


class Bundle(Struct, frozen=True):
    """The policy folder's files by their path in it: Rego modules, data and tests.

    Directories mirror packages; data stands in files named data.yaml or data.json and is mounted
    under its directory, as OPA does with bundles.
    """

    files: Mapping[str, bytes]
    digest: str

    @classmethod
    def of(cls, files: Mapping[str, bytes]) -> Bundle:
        """Make a bundle; the digest covers every path and every byte."""
        return cls(dict(files), bundle_digest(files))

    @classmethod
    def from_record(cls, files: Mapping[str, bytes], digest: str) -> Bundle:
        """Make a bundle of what a store keeps under a digest. Raises BadPolicy if it is another."""
        bundle = cls.of(files)
        if bundle.digest != digest:
            raise BadPolicy(
                f"the recorded bundle {digest[:12]} was changed: it is {bundle.digest[:12]}",
                mend="bring the state folder back from a backup",
            )
        return bundle

    def modules(self, *, tests: bool = False) -> dict[str, str]:
        """Return the Rego modules by path, without tests unless asked for."""
        return {
            path: raw.decode("utf-8")
            for path, raw in sorted(self.files.items())
            if path.endswith(".rego") and (tests or not path.endswith("_test.rego"))
        }

    @property
    def rules_digest(self) -> str:
        """Return the digest of the modules alone: bundles that share it differ in data or tests."""
        return bundle_digest({path: self.files[path] for path in self.modules()})


class Finding(Struct, frozen=True):
    """One thing wrong with a bundle: where (file, line), what, and the mend.

    Without a `verdict` it says nothing of the bundle itself: another trial may admit it.
    """

    file: str
    line: int
    what: str
    mend: str = ""
    verdict: bool = True

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}" + (f" ({self.mend})" if self.mend else "")

    @classmethod
    def of(cls, error: BadPolicy) -> Finding:
        """Return what an error says, with its place if it names one."""
        file, _, line = (error.where or "policies:1").rpartition(":")
        place = int(line) if line.isdigit() else 1
        return cls(file or "policies", place, error.what, error.mend or "")


class Revision(Struct, frozen=True):
    """A published bundle: `number` only grows; a rollback is a new number with old content."""

    number: int
    digest: str


def find_bundle(
    files_of: Callable[[str], Mapping[str, bytes] | None], digest: str
) -> Bundle | None:
    """Return a recorded bundle; None if a store (`files_of`) has its bytes no more, or others."""
    try:
        files = files_of(digest)
        return None if files is None else Bundle.from_record(files, digest)
    except BadPolicy:
        return None


def bundle_digest(files: Mapping[str, bytes]) -> str:
    """Return the digest of a bundle's paths and bytes."""
    return sha256_hex(canonical_json({path: sha256_hex(raw) for path, raw in files.items()}))
