"""provisioning.stack.tools: which binary is taken, and how one is fetched."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from provisioning.errors import ProvisioningError
from provisioning.stack import tools


def program(path: Path, script: str = "exit 0") -> Path:
    """A shell script at that path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an empty PATH (`bin`), an empty cache and no variable that names a tool."""
    for variable in [name for name in os.environ if name.split("_")[0].lower() in tools.TOOLS]:
        monkeypatch.delenv(variable)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_the_variable_wins_over_path(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A binary named by the environment is taken even if PATH has one."""
    program(bare / "bin" / "prometheus")
    mine = program(bare / "mine" / "prom")
    monkeypatch.setenv("PROMETHEUS", str(mine))
    assert tools.find("prometheus") == mine


def test_a_suite_has_a_variable_of_its_own(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PROMETHEUS_SID serves who asks for sid, and nobody else."""
    program(bare / "bin" / "prometheus")
    mine = program(bare / "mine" / "prom")
    monkeypatch.setenv("PROMETHEUS_SID", str(mine))
    assert tools.find("prometheus", "sid") == mine
    assert tools.find("prometheus") == bare / "bin" / "prometheus"


@pytest.mark.parametrize("value", ["nowhere", "."])
def test_a_wrong_variable_is_one_clear_error(value: str, bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that names no executable file is an error, never passed over for PATH."""
    program(bare / "bin" / "prometheus")
    monkeypatch.setenv("PROMETHEUS", value)
    with pytest.raises(ProvisioningError, match=rf"PROMETHEUS must name an executable file \(got '{re.escape(value)}'"):
        tools.find("prometheus")


def test_path_is_searched_by_every_name(bare: Path) -> None:
    """Debian calls Alertmanager prometheus-alertmanager."""
    there = program(bare / "bin" / "prometheus-alertmanager")
    assert tools.find("alertmanager") == there


def test_the_cache_is_used_before_anything_is_fetched(bare: Path) -> None:
    """What was fetched once is found without apt."""
    kept = program(bare / "cache" / "megatron-watch" / f"sid-{platform.machine()}" / "promtool")
    assert tools.find("promtool", "sid") == kept


def test_without_apt_the_error_says_what_to_do(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing found and nothing to fetch with: the error names the command and the variable."""
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"ID": "debian", "VERSION_CODENAME": "bookworm"})
    with pytest.raises(ProvisioningError, match=r"no apt-get .* apt-get install victoria-metrics.* set VMAGENT"):
        tools.find("vmagent")


def test_another_system_is_told_to_install(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a system that is not a Debian nothing is fetched unless a suite is named."""
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"ID": "fedora", "VERSION_CODENAME": ""})
    with pytest.raises(ProvisioningError, match=r"this system is not a Debian.* set PROMETHEUS "):
        tools.find("prometheus")


@pytest.mark.parametrize(("tool", "suite"), [("prometeus", None), ("prometheus", "../sid"), ("prometheus", "")])
def test_a_name_that_cannot_be_is_refused(tool: str, suite: str | None) -> None:
    """A misspelt tool, or a suite that is no suite, is a wrong argument."""
    with pytest.raises(ValueError, match="must be"):
        tools.find(tool, suite)


APT_GET = """
conf=; while [ $# -gt 1 ]; do [ "$1" = -c ] && conf=$(dirname "$2"); last=$1; shift; done
case "$1" in
  --print-uris) printf "'%sInRelease' x 0\\n" http://other/dists/nodistro/ http://old/debian/dists/bookworm/ \
    http://good/mirror/dists/bookworm/ http://old/debian/dists/bookworm-updates/;;
  update) cat "$conf/sources.list" >> LOG
    grep -q good/mirror "$conf/sources.list" || { echo "E: no such suite" >&2; exit 100; };;
  *) echo "download $*" >> LOG; : > "$1.deb";;
esac
"""


@pytest.fixture
def apt(bare: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an apt of ours, whose one good mirror has `prometheus` but no `promtool`; its log."""
    log = bare / "log"
    program(bare / "bin" / "apt-get", APT_GET.replace("LOG", str(log)))
    program(bare / "bin" / "apt-cache", "echo prometheus")
    program(bare / "bin" / "dpkg", "echo amd64")
    program(bare / "bin" / "dpkg-deb", 'mkdir -p "$3/usr/bin"; cp "$PROM" "$3/usr/bin/prometheus"')
    for name in ("sh", "cat", "cp", "dirname", "grep", "mkdir", "printf"):
        (bare / "bin" / name).symlink_to(shutil.which(name, path="/usr/bin:/bin") or name)
    monkeypatch.setenv("PROM", str(program(bare / "prom")))
    monkeypatch.setattr(tools, "_KEYRING", bare / "log")
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"ID": "debian", "VERSION_CODENAME": "bookworm"})
    log.touch()
    return log


def test_the_next_mirror_is_tried(apt: Path) -> None:
    """Mirrors come from apt itself, those of the own suite first; one that lacks the suite is passed over."""
    found = tools.find("prometheus", "sid")
    assert found.parent.name == f"sid-{platform.machine()}"
    assert subprocess.run([found], check=False).returncode == 0
    tried = re.findall(r"\] (\S+) sid main", apt.read_text())
    assert tried == ["http://old/debian/", "http://good/mirror/"]


def test_the_archive_is_verified(apt: Path) -> None:
    """The source list names the keyring that signs the archive."""
    tools.find("prometheus", "sid")
    assert f"[signed-by={apt} " in apt.read_text()


def test_a_fetch_leaves_nothing_but_the_binary(apt: Path) -> None:
    """Lists and packages are gone after a fetch."""
    kept = tools.find("prometheus", "sid")
    assert [path for path in tools.cache_dir().rglob("*") if path.is_file()] == [kept]


def test_a_suite_without_the_tool_is_one_clear_error(apt: Path) -> None:
    """The error of a failed fetch names tool and suite, and nothing stays in the cache."""
    with pytest.raises(ProvisioningError, match=r"no package 'victoria-metrics' in sid.* Set VMALERT_SID"):
        tools.find("vmalert", "sid")
    assert not list(tools.cache_dir().iterdir())


def test_the_words_of_apt_are_in_the_error(apt: Path, bare: Path) -> None:
    """When no mirror serves the suite, apt's own complaint is what the reader sees."""
    script = bare / "bin" / "apt-get"
    script.write_text(script.read_text().replace("http://good/mirror", "http://bad/mirror"))
    with pytest.raises(ProvisioningError, match="apt-get: E: no such suite"):
        tools.find("prometheus", "sid")


def test_a_binary_that_does_not_start_is_not_kept(apt: Path, bare: Path) -> None:
    """A binary that needs a newer C library than this system's is an error and leaves the cache empty."""
    program(bare / "prom", "echo GLIBC_9.9 not found >&2; exit 1")
    with pytest.raises(ProvisioningError, match=r"prometheus: GLIBC_9\.9 not found"):
        tools.find("prometheus", "sid")
    assert not list(tools.cache_dir().iterdir())


@pytest.mark.live
def test_sid_is_fetched_into_an_empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's sid gives a Prometheus 3 and the promtool beside it, verified by apt, below the cache alone."""
    if not shutil.which("apt-get") and not os.environ.get("CI"):
        pytest.skip("needs apt-get, Debian's package tool")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("PROMETHEUS_SID", raising=False)
    found = tools.find("prometheus", "sid")
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=True)
    assert "prometheus, version 3." in said.stdout + said.stderr
    kept = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert kept == {"prometheus", "promtool"}


@pytest.mark.live
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_no_right_is_needed_to_fetch() -> None:
    """The user nobody, without a home, gets a binary too."""
    nobody = 65534
    code = "from provisioning.stack.tools import find; print(find('promtool', 'bookworm'))"
    command = ["setpriv", f"--reuid={nobody}", f"--regid={nobody}", "--clear-groups", "/usr/bin/python3", "-c", code]
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders, and maybe the checkout, are closed to nobody
        place = Path(folder)
        for name in ("__init__.py", "errors.py", "stack/__init__.py", "stack/tools.py"):
            (place / "provisioning" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(tools.__file__).parents[1] / name, place / "provisioning" / name)
        (place / "cache").mkdir()
        os.chown(place, nobody, nobody)
        os.chown(place / "cache", nobody, nobody)
        environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "XDG_CACHE_HOME": str(place / "cache")}
        done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert Path(done.stdout.strip()).stat().st_uid == nobody
