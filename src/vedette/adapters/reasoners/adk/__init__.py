"""Google's Agent Development Kit behind the Reasoner port, and the tools it may be given."""
