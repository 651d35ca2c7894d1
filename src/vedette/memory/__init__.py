"""What an agent may know: retrieval, lineage, training sets, review; the store keeps it."""
