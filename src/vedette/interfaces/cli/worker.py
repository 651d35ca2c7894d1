"""`vedette worker`: one agent's judge, apart from the gateway."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import click

from vedette.domain.base.errors import BadCommand, BadFleet
from vedette.interfaces.cli.output import sanitize_text, wants_json


@click.command()
@click.option("--agent", required=True, metavar="NAME", help="Whose judge this is.")
@click.option("--gateway", required=True, metavar="URL", help="https://HOST[:PORT], or unix:PATH.")
@click.option(
    "--identity",
    metavar="FILE|google:NAME",
    help="Its key, as `identity issue` wrote it; or Google's metadata server, for gateway NAME.",
    required=True,
)
@click.option(
    "--agents",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path("agents"),
    show_default=True,
    help="The folder that holds the agent's folder.",
)
@click.option("--require-box", is_flag=True, help="Refuse where this kernel has no whole box.")
def worker(agent: str, gateway: str, identity: str, agents: Path, require_box: bool) -> None:
    """Run one agent's judge for a gateway, with nothing but the agent's identity and folder.

    It reads no vedette.toml, no store and no target's credential. The judge runs in a box: it reads
    its folder, and reaches no network, file or process else; what the kernel leaves open is said.
    If the gateway goes away it connects again; until Ctrl-C. With --json what happens is told as
    lines of JSON.
    """
    import asyncio

    from vedette.adapters.reasoners.workers.sandbox_probe import protection

    folder = (agents / agent).resolve()
    if not (folder / "judge.py").is_file():
        mend = "give --agents FOLDER; only agents with a judge have workers"
        raise BadCommand("is not there", where=str(folder / "judge.py"), mend=mend)
    lacks = protection().gaps()
    if lacks and require_box:
        what = f"the judge would not be closed in: {'; '.join(lacks)}"
        raise BadFleet(what, mend="leave --require-box out and trust its code", code="not-boxed")
    mint = _build_minter(agent, identity)
    with suppress(KeyboardInterrupt):
        asyncio.run(_run_worker(agent, folder, gateway, mint, lacks))


def _build_minter(agent: str, identity: str) -> Callable[[], Awaitable[str]]:
    """Return what mints the worker's tokens. Raises BadFleet for a file that is no identity."""
    if identity == "google" or identity.startswith("google:"):
        audience = identity.partition(":")[2]
        if not audience:
            mend = "write --identity google:NAME"
            raise BadCommand("google tokens need the gateway's audience", mend=mend)
        from vedette.adapters.identity.google import MetadataServer

        metadata = MetadataServer()
        return lambda: metadata.id_token(audience)
    from vedette.adapters.identity.spiffe import Signer
    from vedette.domain.base.clock import SystemClock

    path, clock = Path(identity), SystemClock()
    found = Signer.from_file(path).identity.agent
    if found != agent:
        what = f"is the identity of {found}, not of {agent}"
        raise BadCommand(what, where=identity, mend="give the right file")

    async def mint() -> str:
        # Read anew each time: the file is replaced when the key is rotated.
        return Signer.from_file(path).mint(clock.now_us())

    return mint


async def _run_worker(
    agent: str,
    folder: Path,
    gateway: str,
    mint: Callable[[], Awaitable[str]],
    lacks: list[str],
) -> None:
    import asyncio
    import signal
    import tempfile

    from vedette.adapters.reasoners.workers.supervisor import WorkerPool
    from vedette.adapters.reasoners.workers.websocket_client import Relay
    from vedette.config.snapshot import keep_snapshot

    as_json = wants_json()

    def report(words: str) -> None:
        line = f"worker {agent}: {sanitize_text(words)}"
        click.echo(json.dumps({"agent": agent, "told": words}) if as_json else line, err=True)

    for open_way in lacks:
        report(f"not closed in: {open_way}")
    with tempfile.TemporaryDirectory(prefix="vedette-worker-") as state:
        pool = WorkerPool(Path(state), on_worker_lost=lambda *_: None)
        try:
            relay = Relay(
                agent, gateway, mint=mint, take_snapshot=lambda: keep_snapshot(Path(state), folder),
                pool=pool, report=report,
            )  # fmt: skip
            work = asyncio.ensure_future(relay.run())
            loop = asyncio.get_running_loop()
            for ours in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(ours, work.cancel)
            with suppress(asyncio.CancelledError):
                await work
        finally:
            pool.close()
