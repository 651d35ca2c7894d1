"""vedette runs a fleet of ambient AI agents.

The root exports only a version, so that an import says where a thing lives. No vendor is
loaded by importing this package (tests/unit/test_imports.py).
"""

__version__ = "0.1.0"
