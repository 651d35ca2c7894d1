"""Who an agent or a person is: keys, tokens, secrets."""
