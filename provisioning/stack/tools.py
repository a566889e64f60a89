"""Find the binary of Prometheus or of a tool beside it, or fetch Debian's without root. Standard library only."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from provisioning.errors import ProvisioningError

_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_SUITE = re.compile(r"[a-z][a-z0-9-]*")


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A binary and where Debian keeps it."""

    name: str
    packages: tuple[str, ...]
    """Packages that hold it in one suite or another; those that a suite lacks are passed over."""
    files: tuple[str, ...]
    """File names that it goes by, upstream's first."""


TOOLS = {
    tool.name: tool
    for tool in (
        Tool(name="prometheus", packages=("prometheus", "promtool"), files=("prometheus",)),
        # Inside `prometheus` up to bookworm, a package of its own from trixie on.
        Tool(name="promtool", packages=("prometheus", "promtool"), files=("promtool",)),
        Tool(
            name="alertmanager",
            packages=("prometheus-alertmanager",),
            files=("alertmanager", "prometheus-alertmanager"),
        ),
        Tool(name="amtool", packages=("prometheus-alertmanager",), files=("amtool",)),
        Tool(name="vmagent", packages=("victoria-metrics",), files=("vmagent",)),
        Tool(name="vmalert", packages=("victoria-metrics",), files=("vmalert",)),
    )
}


def find(tool: str, suite: str | None = None) -> Path:
    """Path of a tool's binary.

    Looks at the environment variable that bears the tool's name (`PROMETHEUS`), at PATH and at the cache, then
    fetches Debian's package into the cache. With a suite of Debian (`bookworm`, `trixie`, `sid`) it looks at
    `PROMETHEUS_SID` and at the cache, then fetches that suite's version.

    Raises: ValueError for a tool or suite that cannot be; ProvisioningError if there is no binary to be had.
    """
    if tool not in TOOLS:
        raise ValueError(f"stack.tools: tool must be one of {', '.join(TOOLS)} (got {tool!r})")
    if suite is not None and not _SUITE.fullmatch(suite):
        raise ValueError(f"stack.tools: suite must be the name of a Debian suite, as 'sid' (got {suite!r})")
    variable = tool.upper() if suite is None else f"{tool}_{suite.replace('-', '_')}".upper()
    if named := os.environ.get(variable):
        return _named(variable, named)
    advice = f"Set {variable} to the path of one."
    if suite is None:
        for file in TOOLS[tool].files:
            if found := shutil.which(file):
                return Path(found)
        advice = f"Install it (Debian: apt-get install {TOOLS[tool].packages[0]}) or set {variable} to its path."
        suite = _own_suite(tool, advice)
    kept = cache_dir() / f"{suite}-{platform.machine()}"
    if not os.access(kept / tool, os.X_OK):
        _fetch(TOOLS[tool], suite, kept, advice)
    return kept / tool


def cache_dir() -> Path:
    """Folder that keeps what was fetched; deleting it is safe and fetches anew."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "megatron-watch"


def _named(variable: str, value: str) -> Path:
    path = Path(value).expanduser().absolute()
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise ProvisioningError(
            f"stack.tools: {variable} must name an executable file (got {value!r}). Correct it or unset it."
        )
    return path


def _no_binary(tool: str, got: str, advice: str) -> ProvisioningError:
    return ProvisioningError(
        f"stack.tools: {tool} must be installed, or Debian's package of it within reach (got {got}). {advice}"
    )


def _own_suite(tool: str, advice: str) -> str:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    if release.get("ID") != "debian" or "VERSION_CODENAME" not in release:
        raise _no_binary(tool, "none on PATH, and this system is not a Debian", advice)
    return release["VERSION_CODENAME"]


def _fetch(tool: Tool, suite: str, kept: Path, advice: str) -> None:
    """Unpack the packages of a tool in a temporary folder and move its binaries to where they are kept, each at once.

    apt reads only our own source list and writes only below that folder, so no right is needed and nothing of the
    system changes; it verifies all it fetches with the keyring of Debian.
    """
    for program in ("apt-get", "apt-cache", "dpkg", "dpkg-deb"):
        if not shutil.which(program):
            raise _no_binary(tool.name, f"no {program} to fetch it with", advice)
    if not _KEYRING.exists():
        raise _no_binary(tool.name, f"no {_KEYRING} to verify it with", advice)
    print(f"stack: fetching {tool.name} from Debian {suite} into {kept} …", file=sys.stderr, flush=True)
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent, prefix="fetch-") as folder:
            work = Path(folder)
            _download(tool, suite, work)
            for package in sorted(work.glob("*.deb")):
                _run("dpkg-deb", "--extract", package, work / "root")
            _keep(work / "root" / "usr" / "bin", kept)
    except (OSError, subprocess.CalledProcessError) as error:
        raise _no_binary(tool.name, _words(error), advice) from error
    if not (kept / tool.name).exists():
        raise _no_binary(tool.name, f"packages of {suite} without it", advice)


def _keep(source: Path, kept: Path) -> None:
    """Move the binaries we know into the cache; renaming makes each appear whole, whoever else fetches meanwhile."""
    for tool in TOOLS.values():
        for file in tool.files:
            if (source / file).is_file():
                _run(source / file, "--version")  # does it start here? A newer suite may need a newer C library
                kept.mkdir(exist_ok=True)
                os.replace(source / file, kept / tool.name)


def _download(tool: Tool, suite: str, work: Path) -> None:
    """Debian packages of a tool, as files in the work folder."""
    for folder in ("lists/partial", "cache/archives/partial"):
        (work / folder).mkdir(parents=True)
    (work / "status").touch()
    (work / "apt.conf").write_text(
        # The system's hooks after an update are for its own lists, and need root.
        "#clear APT::Update;\n"
        f'Dir::Etc::sourcelist "{work}/sources.list";\n'
        'Dir::Etc::sourceparts "/dev/null";\n'
        'Dir::Etc::preferences "/dev/null";\n'
        'Dir::Etc::preferencesparts "/dev/null";\n'
        f'Dir::State "{work}";\n'
        f'Dir::State::lists "{work}/lists";\n'
        f'Dir::State::status "{work}/status";\n'
        f'Dir::Cache "{work}/cache";\n'
        # Started as root, apt would become the user _apt, who may not write here.
        'APT::Sandbox::User "root";\n'
        'Acquire::Retries "3";\n'
    )
    apt = ("-q", "-c", work / "apt.conf")
    options = f"signed-by={_KEYRING} target=Packages lang=none arch={_run('dpkg', '--print-architecture').strip()}"
    failure: Exception | None = None
    for mirror in _mirrors():
        (work / "sources.list").write_text(f"deb [{options}] {mirror} {suite} main\n")
        try:
            _run("apt-get", *apt, "--error-on=any", "update")
            break
        except subprocess.CalledProcessError as error:
            failure = failure or error
    else:
        raise failure or FileNotFoundError("no Debian mirror among the sources of apt")
    known = _run("apt-cache", *apt, "pkgnames").split()
    packages = [package for package in tool.packages if package in known]
    if not packages:
        raise FileNotFoundError(f"no package {tool.packages[0]!r} in {suite}")
    _run("apt-get", *apt, "download", *packages, cwd=work)


def _mirrors() -> Iterator[str]:
    """Archives that apt of this system knows, the likeliest mirrors of Debian first; apt itself proves which is one."""
    uris = re.findall(r"^'(\S+)dists/([^/\s]+)/InRelease'", _run("apt-get", "update", "--print-uris"), re.M)
    own = platform.freedesktop_os_release().get("VERSION_CODENAME")
    ranked = sorted(uris, key=lambda uri: (uri[1] != own, not uri[0].endswith("/debian/")))
    yield from dict.fromkeys(uri for uri, _ in ranked)


def _run(*command: str | Path, cwd: Path | None = None) -> str:
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return done.stdout


def _words(error: Exception) -> str:
    """What a failed command said, on one line."""
    if isinstance(error, subprocess.CalledProcessError):
        said = [line for line in (error.stderr or error.stdout or "").splitlines() if line.strip()]
        return f"{Path(error.cmd[0]).name}: {' | '.join(said[-3:]) or f'exit code {error.returncode}'}"
    return str(error)
