"""Compiles the Wasm of the shipped rules to machine code of this machine, in the package itself.

    python -m vedette.adapters.policy_engines.opa_wasm

`make setup` and the image do it, so that no first start has to. A wheel brings none: it is for
every processor. Where it was not done, or on another processor, the first start compiles.
"""

from __future__ import annotations

from vedette.adapters.policy_engines.opa_wasm.instance import load_module
from vedette.adapters.policy_engines.opa_wasm.machine_code import SHIPPED_FOLDER, package_cache


def main() -> None:
    """Compile what is shipped, unless its machine code is there and fits this machine."""
    if not SHIPPED_FOLDER.is_dir():
        return
    # What the group may write to is not believed; and others may read what they run.
    SHIPPED_FOLDER.chmod(0o755)
    for path in SHIPPED_FOLDER.glob("*.wasm"):
        load_module(path.read_bytes(), package_cache(read_only=False))
    for path in SHIPPED_FOLDER.glob("*.cwasm"):
        path.chmod(0o644)


if __name__ == "__main__":
    main()
