"""What answers the port PolicyEngine: regorus, OPA, OPA's Wasm."""
