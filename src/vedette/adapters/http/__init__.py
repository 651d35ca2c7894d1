"""Tools that are requests over HTTP, declared in agent.yaml and made by the engine itself."""
