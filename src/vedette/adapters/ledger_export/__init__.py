"""The ledger as files: exports that anybody can verify, archives, proofs, and verification."""

from vedette.adapters.ledger_export.archive import Archive, Joined, archive, last_before
from vedette.adapters.ledger_export.files import Exported, Walk, archived_of, export, sync_folder
from vedette.adapters.ledger_export.proofs import (
    CONSISTENCY,
    PROOF,
    prove,
    prove_growth,
    verify_growth,
    verify_proof,
)
from vedette.adapters.ledger_export.verification import COLUMNS, verify_store

__all__ = [
    "COLUMNS", "CONSISTENCY", "PROOF", "Archive", "Exported", "Joined", "Walk", "archive",
    "archived_of", "export", "last_before", "prove", "prove_growth", "sync_folder",
    "verify_growth", "verify_proof", "verify_store",
]  # fmt: skip
