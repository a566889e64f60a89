"""What the verbs that read a log have in common: its name, its run's, its format, its bytes."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from contextlib import contextmanager
from glob import has_magic
from io import BufferedIOBase
from pathlib import Path

from .errors import EmitterError
from .readers import LogReader, reader

CHUNK = 1 << 18
"""Bytes that are read at a time, at most."""


_HOLE = re.compile(rb"\0{2,}")


def run_id_option(text: str) -> str:
    """A run id that was given."""
    if text.strip():
        return text
    raise argparse.ArgumentTypeError(f"a run has an id (got {text!r}). Leave it out to use the file's name.")


def reader_of(name: str) -> LogReader:
    """A reader of the format that was named."""
    try:
        return reader(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("emitter.readers: ")) from error


def run_name(path: str) -> str:
    """Name of a run by where its log is; of a pattern it is the folder's that holds all that match."""
    if path == "-":
        return "stdin"
    there = Path(path)
    while has_magic(str(there)) and not there.exists():
        there = there.parent
        if not has_magic(str(there)):
            return there.resolve().name
    return there.resolve().name if there.is_dir() else there.stem


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Where a log is opened and read, and nothing else is done.

    Raises: EmitterError if that fails.
    """
    try:
        yield
    except IsADirectoryError:
        raise EmitterError(f"{name}: a log is a file (got a directory). Name a file in it.") from None
    except OSError as error:
        raise EmitterError(f"{name}: a log must be readable (got {error.strerror}). Check the path.") from error


def name_in_messages(log: str) -> str:
    """What a log is called where something is said of it."""
    return "standard input" if log == "-" else log


def opened(name: str) -> BufferedIOBase:
    """A log, or standard input, as bytes; whoever opens it closes it."""
    return open(0 if name == "-" else name, "rb", closefd=name != "-")


def chunks(file: BufferedIOBase, name: str) -> Iterator[bytes]:
    """The bytes of a log as they come, some at a time: a line may have no end.

    Of a hole, which a file has that was cut under its writer, little is left: it is no part of the line behind it.
    """
    with readable(name):
        while data := file.read1(CHUNK):
            yield _HOLE.sub(b"\0", data) if b"\0\0" in data else data
