"""The environment of workers of agents' code: what a Python needs, and no secret of the engine's.

Named by what may stay, not by what has to go: nobody can tell what a secret's variable is called.
A tool is given the secrets of its target in its call.
"""

from __future__ import annotations

from collections.abc import Mapping

_ALLOWED_NAMES = frozenset(
    {
        "HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LOGNAME", "NO_PROXY", "PATH",
        "SSL_CERT_DIR", "SSL_CERT_FILE", "TMPDIR", "TZ", "USER", "VEDETTE_MODEL", "VIRTUAL_ENV",
        "no_proxy",
        "GCE_METADATA_HOST", "GOOGLE_CLOUD_PROJECT",
    }
)  # fmt: skip
_ALLOWED_PREFIXES = ("LC_", "PYTHON", "COVERAGE_", "XDG_")
_PROXIES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"})
# Libraries of linear algebra start threads when they are imported, one for each core; a fork
# server must have none, and a hundred workers must not have a hundred times as many.
_SET = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def filter_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that workers of agents' code are started with."""
    return {name: value for name, value in environ.items() if _is_allowed(name, value)} | _SET


def _is_allowed(name: str, value: str) -> bool:
    if name in _PROXIES:
        return "@" not in value  # else there is a password before it
    return (
        name in _ALLOWED_NAMES
        or name.startswith(_ALLOWED_PREFIXES)
        or name.endswith("_EMULATOR_HOST")
    )
