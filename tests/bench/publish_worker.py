"""`vedette` as it is, or with `--unfenced` first: a worker whose barrier is taken out.

Such a worker does not look for a newer revision before a call, takes none up, and answers a
publication without waiting for anybody. It is the control of what is measured: with workers like
these, calls must come late.
"""

from __future__ import annotations

import sys


def without_fence() -> None:
    """Let every call start and every publication return, whatever the others do."""
    from vedette.store.postgres.cluster import LeasedCluster

    async def at_once(cluster: LeasedCluster) -> None:
        return None

    setattr(LeasedCluster, "is_lease_valid", lambda cluster, epoch: True)  # noqa: B010 (mypy: a method)
    setattr(LeasedCluster, "wait_for_barrier", at_once)  # noqa: B010
    setattr(LeasedCluster, "is_current", property(lambda cluster: True))  # noqa: B010


def main() -> None:
    """Run the command line."""
    from vedette.interfaces.cli import main as vedette

    words = sys.argv[1:]
    if words[:1] == ["--unfenced"]:
        words = words[1:]
        without_fence()
    vedette(words)


if __name__ == "__main__":
    main()
