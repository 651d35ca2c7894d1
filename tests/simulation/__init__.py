"""The deterministic simulation: one seed, one world, every fault (docs/design/simulation.md)."""
