"""vedette runs a fleet of ambient AI agents.

The root exports only a version, so that an import says where a thing lives. No vendor is
loaded by importing this package (tests/unit/test_imports.py).
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 (whoever starts it with an older one should be told)
    sys.exit(
        "error[wrong-python]: this is Python %d.%d, vedette needs 3.11 or newer"  # noqa: UP031
        " (start it with a newer one: /path/to/python3.12 -m vedette)" % sys.version_info[:2]
    )

__version__ = "0.1.0"
