"""`python -m provisioning render | check`: the command line, and the only place that reads the checkout."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

EXTRA = "Install the extra: pip install '.[provision]'"

try:
    import click
except ModuleNotFoundError as error:
    print(f"provisioning: must have {error.name!r}. {EXTRA}.", file=sys.stderr)
    sys.exit(2)

if TYPE_CHECKING:
    from provisioning.bundle import Bundle
    from provisioning.checks import Outcome, Papers
    from provisioning.output import Changes

CHECKOUT = Path(__file__).resolve().parent.parent

_Command = TypeVar("_Command", bound=Callable[..., object])


def _places(command: _Command) -> _Command:
    """The options that every verb has."""
    site = partial(click.Path, dir_okay=False, path_type=Path)
    out = partial(click.Path, file_okay=False, path_type=Path)
    add_out = click.option("--out", type=out(), default="deploy", show_default=True, help="Root of the rendered tree.")
    add_site = click.option("--site", type=site(), default="site.yaml", show_default=True, help="Settings of the site.")
    return add_site(add_out(command))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Dashboards and alert rules of a site, from code to files."""


@cli.command()
@_places
@click.option("--check", "checked", is_flag=True, help="Run every offline check first; write nothing if one fails.")
def render(site: Path, out: Path, checked: bool) -> None:
    """Write the files of every target under --out, all or none of them."""
    bundle = _bundle(site)
    from provisioning import output

    files = output.render(bundle)
    if checked and _report(_outcomes(bundle)):
        _fail(f"{out}: nothing written.")
    changes = output.compare(files, output.read(out))
    output.write(out, files, changes)
    _show(out, changes)


@cli.command()
@_places
def check(site: Path, out: Path) -> None:
    """Check everything that can be checked offline, and that --out is what `render` would write."""
    bundle = _bundle(site)
    from provisioning import checks, output

    changes = output.compare(output.render(bundle), output.read(out))
    fresh = checks.outcome("output", checks.output(changes, str(out)))
    if _report([*_outcomes(bundle), fresh]):
        sys.exit(1)


def _bundle(site: Path) -> Bundle:
    """The bundle that a settings file asks for."""
    if not site.is_file():
        _fail(
            f"{site}: must be a file (got nothing there). Run from the root of the checkout, or name it with --site.", 2
        )
    from provisioning.bundle import collect
    from provisioning.errors import ProvisioningError
    from provisioning.site import parse

    try:
        text = site.read_text(encoding="utf-8")
    except OSError as error:
        raise ProvisioningError(f"{site}: must be readable (got this: {error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise ProvisioningError(f"{site}: must be UTF-8 text (got this: {error.reason}).") from error
    return collect(parse(text, str(site)))


def papers() -> Papers:
    """The runbook and the alerts' tests, from the checkout that runs."""
    from provisioning.checks import Papers

    runbook = CHECKOUT / "alerts" / "runbook.md"
    tests = (CHECKOUT / "tests" / "promtool").glob("*.yaml")
    return Papers(
        runbook=runbook.read_text(encoding="utf-8") if runbook.is_file() else "",
        promtool={file.stem: file.read_text(encoding="utf-8") for file in tests},
    )


def _outcomes(bundle: Bundle) -> list[Outcome]:
    from provisioning import checks

    return checks.run(bundle, papers())


def _report(outcomes: Sequence[Outcome]) -> bool:
    """Print what the checks found; whether there is a problem."""
    from rich.console import Console
    from rich.table import Table

    table = Table("Check", box=None, pad_edge=False)
    for heading in ("Looked at", "Problems"):
        table.add_column(heading, justify="right")
    for outcome in outcomes:
        style = "red" if outcome.problems else None
        table.add_row(outcome.check, str(outcome.looked_at), str(len(outcome.problems)), style=style)
    Console().print(table)
    problems = [problem for outcome in outcomes for problem in outcome.problems]
    for problem in problems:
        click.echo(str(problem))
    return bool(problems)


def _show(out: Path, changes: Changes) -> None:
    """Print what was written."""
    kinds = {"new": changes.new, "changed": changes.changed, "removed": changes.removed}
    for kind, paths in kinds.items():
        for path in paths:
            click.echo(f"{kind:8} {out / path}")
    counts = {**kinds, "unchanged": changes.unchanged}
    click.echo(f"{out}: {', '.join(f'{len(paths)} {kind}' for kind, paths in counts.items())}")


def _fail(message: str, code: int = 1) -> NoReturn:
    click.echo(message, err=True)
    sys.exit(code)


def main() -> None:
    """Run the command line: exit 0 fine, 1 problems found or work failed, 2 wrong usage."""
    from provisioning.errors import ProvisioningError

    try:
        cli(prog_name="python -m provisioning")
    except ProvisioningError as error:
        _fail(str(error))
    except ModuleNotFoundError as error:
        _fail(f"provisioning: must have {error.name!r}. {EXTRA}.", 2)


if __name__ == "__main__":
    main()
