"""The broker's jars and the client's environment: made once from two locks, beside the tools.

No registry is named here. Maven, where it is, asks whichever one this machine is set up for;
without it VEDETTE_MAVEN_REPOSITORY is the https address of a repository of Maven's layout. Each jar
is held against its SHA-256 before it is used. The product never imports either.

After a change of requirements.in:

    tools/uv pip compile tests/bench/kafka/requirements.in --universal --python-version 3.11 \\
      --generate-hashes --no-header --no-emit-index-url --quiet --upgrade \\
      --output-file tests/bench/kafka/requirements.lock
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.environments import install_lock
from tests.said import ROOT

HERE = Path(__file__).parent
JARS = HERE / "jars.lock"
LOCK = HERE / "requirements.lock"
REPOSITORY = "VEDETTE_MAVEN_REPOSITORY"

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>vedette</groupId><artifactId>broker</artifactId><version>1</version>
<packaging>pom</packaging><dependencies>
{}
</dependencies></project>
"""
_DEPENDENCY = (
    "<dependency><groupId>{0.group}</groupId><artifactId>{0.artifact}</artifactId>"
    "<version>{0.version}</version><exclusions><exclusion><groupId>*</groupId>"
    "<artifactId>*</artifactId></exclusion></exclusions></dependency>"
)


class InstallationError(RuntimeError):
    """Something that a broker or its client needs is not here; says what, and the mend."""


@dataclass(frozen=True, slots=True)
class Jar:
    """One jar of Maven's coordinates, and the SHA-256 (hex) that it must have."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def name(self) -> str:
        """The file's name, in a repository and here."""
        return f"{self.artifact}-{self.version}.jar"

    @property
    def path(self) -> str:
        """Where a repository of Maven's layout has it."""
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.name}"


def read_jars(text: str) -> list[Jar]:
    """Read a lock of jars. Raises ValueError, naming the line, for what is no pin with a digest."""
    jars = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        place, _, digest = line.partition(" ")
        group, artifact, version, *more = [*place.split(":"), "", ""]
        pinned = all((group, artifact, version)) and not any(more)
        if not pinned or len(digest) != 64 or set(digest) - set(_HEX):
            raise ValueError(f"not `group:artifact:version sha256`: {line}")
        jars.append(Jar(group, artifact, version, digest))
    if len({jar.name for jar in jars}) != len(jars):
        raise ValueError("two jars of one file name")
    return jars


_HEX = "0123456789abcdef"


def find_java(environ: Mapping[str, str] = os.environ) -> str:
    """Return the java to run. Raises InstallationError without one."""
    home = environ.get("JAVA_HOME", "")
    named = Path(home) / "bin" / "java"
    if home and named.exists():
        return str(named)
    found = shutil.which("java", path=environ.get("PATH", ""))
    if found is None:
        raise InstallationError(
            "there is no java. Mend: install Java 17 or newer, or set JAVA_HOME"
        )
    return found


def broker_jars(home: Path = ROOT / ".tools" / "kafka") -> Path:
    """Return the folder of the broker's jars, brought now if the lock has changed since.

    Raises InstallationError if they cannot be had, or one is not what the lock says.
    """
    wanted = hashlib.sha256(JARS.read_bytes()).hexdigest()
    stamp, lib = home / "installed", home / "lib"
    if stamp.exists() and stamp.read_text() == wanted:
        return lib
    jars = read_jars(JARS.read_text("utf-8"))
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home) as work:
        brought = Path(work) / "lib"
        brought.mkdir()
        _bring(jars, brought)
        check_jars(jars, brought)
        shutil.rmtree(lib, ignore_errors=True)
        brought.rename(lib)
    stamp.write_text(wanted)
    return lib


def check_jars(jars: Sequence[Jar], folder: Path) -> None:
    """Raise InstallationError, naming the jar, unless the folder holds exactly these jars."""
    found = {path.name for path in folder.iterdir()}
    if found != (names := {jar.name for jar in jars}):
        raise InstallationError(f"missing or too many jars: {sorted(found ^ names)}")
    for jar in jars:
        digest = hashlib.sha256((folder / jar.name).read_bytes()).hexdigest()
        if digest != jar.sha256:
            raise InstallationError(f"{jar.name} is not what jars.lock says: SHA-256 {digest}")


def _bring(jars: Sequence[Jar], folder: Path) -> None:
    base = os.environ.get(REPOSITORY, "").rstrip("/")
    if base:
        if not base.startswith("https://"):
            raise InstallationError(f"{REPOSITORY} is no https address")
        for jar in jars:
            with urllib.request.urlopen(f"{base}/{jar.path}", timeout=60) as answer:
                (folder / jar.name).write_bytes(answer.read())
        return
    if shutil.which("mvn") is None:
        raise InstallationError(
            f"the broker's jars are not here. Mend: install Maven, or set {REPOSITORY}"
        )
    pom = folder.parent / "pom.xml"
    pom.write_text(_POM.format("\n".join(_DEPENDENCY.format(jar) for jar in jars)), "utf-8")
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies",
               f"-DoutputDirectory={folder}"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InstallationError(f"Maven did not bring the jars: {done.stdout[-2000:]}")


def client_python() -> Path:
    """Return the client's interpreter, made now if need be. Raises InstallationError."""
    try:
        return install_lock(LOCK, ROOT / ".tools" / "kafka-client")
    except RuntimeError as error:
        raise InstallationError(str(error)) from error
