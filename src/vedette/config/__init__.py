"""Reads and checks the fleet: every error has file, line and the mend.

Files are read here and nowhere else. Agents' code is parsed for the checks and imported only by
`agent_loader`, under a private parent package.
"""
