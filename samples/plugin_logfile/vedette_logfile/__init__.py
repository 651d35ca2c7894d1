"""Log files for vedette: a source, a notifier, a target and a tool; and a reasoner by rules."""
