"""emitter.blocks: promtool makes all blocks or none, and nothing half-done is ever loaded."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from emitter import blocks
from emitter.errors import EmitterError

BLOCK_S = blocks.BLOCK_MS // 1000


def piece(number: int, samples: int = 3) -> str:
    """One exposition inside of a block."""
    lines = [f"loss {value}.5 {number * BLOCK_S + value}\n" for value in range(samples)]
    return f"# TYPE loss gauge\n{''.join(lines)}# EOF\n"


def program(folder: Path, script: str) -> str:
    """A program that stands where promtool is looked for."""
    path = folder / "promtool"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def silent() -> None:
    pass


def test_one_block_for_each_piece_and_nothing_else(promtool_binary: Path, tmp_path: Path) -> None:
    """Blocks lie on two-hour bounds, days apart where the samples are, and the work is cleared away."""
    numbers = [236_000, 236_001, 236_050]
    told: list[None] = []
    data = tmp_path / "new" / "data"
    made = blocks.write(([piece(number)] for number in numbers), data, str(promtool_binary), lambda: told.append(None))
    found = sorted(data.iterdir())
    metas = [json.loads((block / "meta.json").read_text()) for block in found]
    assert made == len(found) == 3
    assert sorted(meta["minTime"] // blocks.BLOCK_MS for meta in metas) == numbers
    assert [meta["stats"]["numSamples"] for meta in metas] == [3, 3, 3]
    assert len(told) >= len(numbers)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
def test_blocks_belong_to_whoever_owns_the_folder(promtool_binary: Path, tmp_path: Path) -> None:
    """A Prometheus that runs as its own user can delete what root has put there, whatever root's umask is."""
    data = tmp_path / "data"
    data.mkdir()
    os.chown(data, 65534, 65534)
    before = os.umask(0o077)
    try:
        blocks.write([[piece(236_000)]], data, str(promtool_binary), silent)
    finally:
        os.umask(before)
    for path in data.rglob("*"):
        assert (path.stat().st_uid, path.stat().st_gid) == (65534, 65534)
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644)


def test_blocks_join_those_that_are_there(promtool_binary: Path, tmp_path: Path) -> None:
    """The folder may be a database: what it holds stays as it is."""
    (tmp_path / "wal").mkdir()
    for number in (1, 2):
        assert blocks.write([[piece(236_000)]], tmp_path, str(promtool_binary), silent) == 1
        assert len(list(tmp_path.glob("*/meta.json"))) == number
    assert (tmp_path / "wal").is_dir()


def test_text_that_promtool_refuses_leaves_nothing(promtool_binary: Path, tmp_path: Path) -> None:
    """Its last words are in the error; blocks of earlier pieces are not put in either."""
    with pytest.raises(EmitterError, match=r"promtool: must make the blocks \(got exit code 1: .*\)"):
        blocks.write([[piece(236_000)], ["loss one\n# EOF\n"]], tmp_path, str(promtool_binary), silent)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("script", "got"),
    [("echo no space >&2; exit 3", "exit code 3: no space"), ("kill -9 $$", "exit code -9: no word")],
)
def test_a_promtool_that_fails_or_is_killed_is_one_error(script: str, got: str, tmp_path: Path) -> None:
    """Whatever ends it, nothing is put into the folder."""
    with pytest.raises(EmitterError, match=got):
        blocks.write([[piece(1)]] * 5, tmp_path / "data", program(tmp_path, script), silent)
    assert list((tmp_path / "data").iterdir()) == []


def test_an_interruption_ends_what_runs(tmp_path: Path) -> None:
    """A promtool at work dies with us, and the folder is as before."""
    alive = program(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 600")

    def pieces() -> Iterator[list[str]]:
        yield [piece(1)]
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
            time.sleep(0.01)
        signal.raise_signal(signal.SIGINT)
        yield [piece(2)]

    with pytest.raises(KeyboardInterrupt):
        blocks.write(pieces(), tmp_path / "data", alive, silent)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert list((tmp_path / "data").iterdir()) == []


def test_an_error_of_whoever_makes_the_pieces_goes_through(tmp_path: Path) -> None:
    """A log that cannot be read any more is not taken for a folder that cannot be written."""

    def pieces() -> Iterator[list[str]]:
        yield []
        raise EmitterError("the log is gone")

    with pytest.raises(EmitterError, match="the log is gone"):
        blocks.write(pieces(), tmp_path / "data", program(tmp_path, ":"), silent)


def test_a_folder_that_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    """It is named, with the reason."""
    (tmp_path / "file").write_text("")
    with pytest.raises(EmitterError, match=r"blocks:.*file.*: must be a folder that can be written"):
        blocks.write([[piece(1)]], tmp_path / "file", program(tmp_path, ":"), silent)


def test_a_program_of_another_system_is_one_error(tmp_path: Path) -> None:
    """What has the name and the right but cannot run is told from what runs and fails."""
    other = tmp_path / "promtool"
    other.write_bytes(b"\x7fELF")
    other.chmod(0o755)
    with pytest.raises(EmitterError, match="must be a program of this system"):
        blocks.write([[piece(1)]], tmp_path / "data", str(other), silent)


def test_promtool_is_as_named_or_in_the_environment_or_on_the_path(tmp_path: Path) -> None:
    """In this order."""
    here = program(tmp_path, ":")
    elsewhere = {"PATH": "/nonexistent", "PROMTOOL": here}
    assert blocks.find_promtool(None, {"PATH": str(tmp_path)}) == here
    assert blocks.find_promtool(None, elsewhere) == here
    assert blocks.find_promtool("/bin/sh", elsewhere) == "/bin/sh"


@pytest.mark.parametrize("environ", [{"PATH": "/nonexistent"}, {"PATH": "/bin", "PROMTOOL": "/nonexistent/promtool"}])
def test_a_missing_promtool_is_one_line_that_says_what_to_install(environ: dict[str, str]) -> None:
    """Debian has it in one package or in another."""
    with pytest.raises(EmitterError, match=r"Debian: package prometheus, from trixie on promtool") as raised:
        blocks.find_promtool(None, environ)
    assert "\n" not in str(raised.value)
