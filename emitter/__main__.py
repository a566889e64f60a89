"""The command line: `python -m emitter`, or `python -m megatron_watch` where the wheel is installed."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import NoReturn

from . import doctor
from .backfill_command import BACKFILL, add_backfill
from .errors import EmitterError
from .log_commands import FOLLOW, REPLAY, add_follow, add_formats, add_replay


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong."""

    def error(self, message: str) -> NoReturn:
        """One line, exit 2."""
        self.exit(2, f"{self.prog}: {message.rstrip('.')}. Try --help.\n")


def main(arguments: list[str] | None = None) -> int:
    """Run a verb; 0 if all is well, 1 if the work failed, 2 if it was asked for wrongly."""
    parser = _Parser(prog=f"python -m {__package__}", description="Metrics of training runs.")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=_Parser)
    add_replay(verbs.add_parser("replay", help="a training log as if the run were live", description=REPLAY))
    add_follow(verbs.add_parser("follow", help="the log of a run that is live", description=FOLLOW))
    add_backfill(verbs.add_parser("backfill", help="the log of a run that is over, as history", description=BACKFILL))
    add_formats(verbs.add_parser("formats", help="the layouts of logs that can be read, with an example of each"))
    doctor.add_arguments(verbs.add_parser("doctor", help=doctor.HELP, description=doctor.DESCRIPTION))
    _open_what_is_closed()
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    code = 1 if options.verb == "doctor" else 0  # until it has found otherwise
    try:
        code = options.run(options)
        sys.stdout.flush()
    except EmitterError as error:
        print(error, file=sys.stderr)
        return 1
    except BrokenPipeError:  # whoever read the output has seen enough
        _forget_output()
    except OSError as error:
        if error.filename is not None:
            raise
        _forget_output()
        print(f"standard output: must take what is written (got {error.strerror}). Is the disk full?", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{options.verb}: stopped.", file=sys.stderr)
    return code


def _open_what_is_closed() -> None:
    """Standard streams that whoever started this has closed: nothing comes, and what goes there goes nowhere."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115 open until the end
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 open until the end


def _forget_output() -> None:
    """Let the interpreter's last flush succeed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
