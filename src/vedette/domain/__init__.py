"""What the fleet speaks of: frozen data, arithmetic, state machines, ports. No SQL, no network."""
