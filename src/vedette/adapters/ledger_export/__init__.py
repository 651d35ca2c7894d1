"""The ledger as files: exports that anybody can verify, archives, proofs, and verification."""

from vedette.adapters.ledger_export.archive import (
    Archive,
    JoinedLedger,
    checkpoint_size_before,
    write_segment,
)
from vedette.adapters.ledger_export.files import (
    LedgerExport,
    VerifiableLedger,
    archived_part,
    export,
    sync_folder,
)
from vedette.adapters.ledger_export.proofs import (
    CONSISTENCY,
    PROOF,
    prove_consistency,
    prove_inclusion,
    verify_consistency_proof,
    verify_inclusion_proof,
)
from vedette.adapters.ledger_export.verification import verify_store

__all__ = [
    "CONSISTENCY",
    "PROOF",
    "Archive",
    "JoinedLedger",
    "LedgerExport",
    "VerifiableLedger",
    "archived_part",
    "checkpoint_size_before",
    "export",
    "prove_consistency",
    "prove_inclusion",
    "sync_folder",
    "verify_consistency_proof",
    "verify_inclusion_proof",
    "verify_store",
    "write_segment",
]  # fmt: skip
