"""All families together: each has its own lines, wherever they are cut or wrapped."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from emitter.readers import FAMILIES, Family, reader
from emitter.readers.printed import anything, elapsed, leading, magnitude, percent, whole
from emitter.readers.table import Family as Checked

each = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


def results(text: str, name: str | None = None) -> tuple[str | None, list[dict[str, Any]]]:
    """The family that a log was found to be of, and its training results by short name."""
    log = reader(name)
    records = log.feed(text.encode()) + log.close()
    assert log.counts.total == len(text.splitlines())
    values = [
        {metric.short: value for metric, value in record.values.items()} for record in records if record.kind == "train"
    ]
    return log.summary.format, values


@each
def test_example_is_recognized(family: Family) -> None:
    """The example of a family is found to be of it, with all of its keys read."""
    log = reader()
    records = log.feed(f"{family.example}\n".encode()) + log.close()
    assert [record.kind for record in records if record.kind != "run"] == ["train"]
    assert (log.summary.format, log.summary.unread) == (family.name, ())


@each
def test_example_with_its_format(family: Family) -> None:
    """A format that is named reads the same as one that was found."""
    assert results(family.example + "\n", family.name)[1] == results(family.example + "\n")[1]


@each
@pytest.mark.parametrize("width", [80, 97, 130])
def test_example_wrapped(family: Family, width: int) -> None:
    """An example that a terminal wrapped is the same example."""
    wrapped = "\n".join(family.example[at : at + width] for at in range(0, len(family.example), width))
    assert results(wrapped + "\n") == results(family.example + "\n")


def test_names_are_unlike() -> None:
    """No two families have the same name or title."""
    assert len({family.name for family in FAMILIES}) == len({family.title for family in FAMILIES}) == len(FAMILIES)


def test_signatures_are_in_the_example() -> None:
    """A family whose example would not be recognized cannot be made."""
    family = FAMILIES[0]
    with pytest.raises(ValueError, match=r"the example of 'x' has one of \('nowhere',\) \(got "):
        Checked(
            name="x", title="X", example=family.example, training=family.training, others=(), signatures=("nowhere",)
        )


def test_words_are_in_the_example() -> None:
    """Nor can one that would not be looked for, since its example has none of the words of its layout."""
    training = replace(FAMILIES[0].training[0], words=("nowhere",))
    with pytest.raises(ValueError, match=r"the example of 'x' is a training line of it \(got "):
        Checked(name="x", title="X", example=FAMILIES[0].example, training=(training,))


@pytest.mark.parametrize(
    ("read", "printed", "expected"),
    [
        (leading, "12.5/13.1", 12.5),
        (leading, "12.5 (avg 13.1)", 12.5),
        (leading, "7", 7),
        (leading, "1.5e-05 s", 1.5e-05),
        (leading, "12x", None),
        (leading, "s 12", None),
        (percent, "12.5%", 0.125),
        (percent, "12.5", None),
        (magnitude, "634K", 634_000),
        (magnitude, "1.25B", 1.25e9),
        (magnitude, "2.5G", 2.5e9),
        (magnitude, "3T", 3 * 10**12),
        (magnitude, "96", 96),
        (magnitude, "96 tokens", None),
        (whole, "3.1e+4", 31_000),
        (whole, "39.00", 39),
        (whole, "inf", None),
        (whole, "12/94", None),
        (elapsed, "02:03", 123),
        (elapsed, "30:02:03", 108_123),
        (elapsed, "1 day, 2:03:04", 93_784),
        (elapsed, "2s", 2),
        (elapsed, "16h 12m 43s", 58_363),
        (elapsed, "1d 1s", 86_401),
        (elapsed, "12 apples", None),
        (elapsed, "4m and 3s", None),
        (elapsed, "", None),
        (anything, "1 day, 2:03:04", 0),
        (anything, "", None),
    ],
)
def test_printed_numbers(read: Any, printed: str, expected: float | None) -> None:
    """A number with something behind it is read as far as it is one."""
    assert read(printed) == expected


def test_leading_nan() -> None:
    """A NaN is a number that stands in front, too."""
    value = leading("nan/1.0")
    assert value is not None
    assert math.isnan(value)
