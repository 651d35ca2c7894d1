"""`vedette init`: writes a new fleet to start from."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import click

import vedette
from vedette.domain.base.errors import BadCommand, Unavailable
from vedette.interfaces.cli.fleet import program
from vedette.interfaces.cli.output import print_result

CONTENT_NAMES = ("agents", "policies", "memory", "samples", "vedette.toml")
_IGNORED_FILES = shutil.ignore_patterns(
    "__pycache__", "*.py[co]", ".vedette", ".adk", ".DS_Store", "*~"
)
_GITIGNORE = "# Everything the program writes: store, keys, copies, caches.\n.vedette/\n"


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
def init(folder: Path) -> None:
    """Write a new fleet into DIR: two agents, their policy, memory and samples.

    DIR must be new or empty. Start with `vedette check` and `vedette run` in it.
    """
    template = find_template()
    target = folder.absolute()
    if target.exists() and any(target.iterdir()):
        raise BadCommand("the folder is not empty", where=str(target), mend="name a new one")
    target.mkdir(parents=True, exist_ok=True)
    for name in CONTENT_NAMES:
        origin = template / name
        if origin.is_dir():
            shutil.copytree(origin, target / name, ignore=_IGNORED_FILES)
        else:
            shutil.copy2(origin, target / name)
    (target / ".gitignore").write_text(_GITIGNORE, encoding="utf-8")
    written = sorted([*CONTENT_NAMES, ".gitignore"])
    following = f"cd {shlex.quote(str(folder))} && {program(below=target)} run"
    text = f"wrote {', '.join(written)} into {target}\nnext: {following}"
    print_result({"folder": str(target), "written": written}, text)


def find_template() -> Path:
    """Return where the content that `vedette init` copies lies: in the wheel, or this checkout.

    Raises Unavailable if neither is whole.
    """
    package = Path(vedette.__file__).resolve().parent
    candidates = [package / "_template"]
    if package.parent.name == "src":
        candidates.insert(0, package.parent.parent)
    for folder in candidates:
        if all((folder / name).exists() for name in CONTENT_NAMES):
            return folder
    mend = "install vedette again; its wheel carries the template"
    raise Unavailable("the template is missing", where=str(candidates[-1]), mend=mend)
