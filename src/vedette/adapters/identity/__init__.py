"""Keys, tokens and secrets of agents and people: JWT, SPIFFE, Google, Secret Manager."""
