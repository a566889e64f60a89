"""Training lines of one log are alike: forms, learned from the first ones, read the next ones in a tenth of the time.

A form is a line in which digits and signs may be others, and the blanks in front of a value more or fewer. What its
layout found in the one line stands at the same places of the other, so that one match reads it as its layout would.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from .. import catalog
from ..catalog import Metric
from .lines import Line, read_line
from .printed import AS_IT_IS, grouped, percent
from .readings import Number, Reading, Scan, State
from .table import Field, Place, TrainingLine, number

FORMS = 8
"""Forms that are remembered: with and without a loss, with other exponents, of this run and the one before."""

LEARNED = 64
"""Forms that are learned in all: a log whose lines are never alike costs no more than it must."""

SOURCES = 4096
"""Beginnings of lines, which tell the source, that are remembered for each form, and its ENDERS."""

LONGEST_REMEMBERED = 512
"""Bytes of one of them."""

ENDERS = 1024

_DIGIT = re.compile(r"\d", re.ASCII)
_DIGITS = re.compile(r"\d+", re.ASCII)

Told = tuple[Reading, str, set[bytes]]
"""What a line said that was read by its form, who printed it, and the enders of the form."""

_Convert = Callable[[str], Number | None]


class _Column(NamedTuple):
    """A value of a form."""

    metric: Metric
    convert: _Convert
    """`int` and `float` for numbers with nothing around them."""
    factor: Number
    percent: bool
    """Whether it is a hundredth of the number."""


class _Form(NamedTuple):
    pattern: re.Pattern[str]
    """A line from its stamp, or else its head, to its end. A group is the stamp, the next ones are values."""
    metrics: tuple[Metric, ...]
    """What the values are."""
    converters: tuple[_Convert, ...]
    """How to read them."""
    sure: bool
    """Whether each of them reads whatever the pattern lets through."""
    factors: tuple[tuple[Metric, Number], ...]
    percents: tuple[Metric, ...]
    like: Reading
    """What is the same in each of them; of `per_gpu` and `cumulative` the metrics are."""
    sources: dict[str, str]
    """Beginnings of lines, in front of that, with what the launcher says there."""
    prefixed: bool
    """Whether nothing behind the beginning tells the source."""
    enders: set[bytes]
    """Lines without a source that cannot go on with one of these, nor can they with other digits, which are 0 here."""

    def read(self, text: str) -> Told | None:
        match = self.pattern.search(text)
        if match is None:
            return None
        stamp, *printed = match.groups()
        beginning = text[: match.start()]
        source = self.sources.get(beginning)
        if source is None and stamp and self.prefixed:
            source = _source(beginning)
        if source is None:
            return None
        values: dict[Metric, Any] = {
            metric: convert(value)
            for metric, convert, value in zip(self.metrics, self.converters, printed)  # noqa: B905  # as many as groups
        }
        if not self.sure and None in values.values():
            return None
        for metric in self.percents:
            values[metric] /= 100
        for metric, factor in self.factors:
            values[metric] *= factor
        kind, _, _, series, settings, phase, _, per_gpu, total, silent_nan, rounded = self.like
        iteration = int(values.pop(catalog.ITERATION))
        per_gpu = {metric: values.pop(metric) for metric in per_gpu} if per_gpu else per_gpu
        total = {metric: values.pop(metric) for metric in total} if total else total
        # By position, since by name it takes twice as long.
        reading = Reading(kind, iteration, values, series, settings, phase, stamp, per_gpu, total, silent_nan, rounded)
        return reading, source, self.enders


class Forms:
    """The forms of one log."""

    def __init__(self) -> None:
        self._forms: deque[_Form] = deque(maxlen=FORMS)
        self._words: dict[str, None] = {}
        """A line without any of these is something else."""
        self._left = LEARNED

    def read(self, text: str) -> Told | None:
        """What a line says, Latin-1 as it is; None if it is of no known form."""
        for word in self._words:
            if word in text:
                break
        else:
            return None
        for form in self._forms:
            if told := form.read(text):
                return told
        return None

    def learn(self, raw: bytes, line: Line, layout: TrainingLine, scan: Scan) -> None:
        """Remember the form of a line that is known to end here, if reading it again by that finds the same."""
        text = raw.decode("latin-1").rstrip("\r\n")
        if not text.endswith(line.text) or not raw.isascii():
            return
        head = len(text) - len(line.text) + scan.begin
        ended = scan.state == State.WHOLE or (scan.state == State.ENDED and layout.endless)
        whole = ended and not scan.strange and not scan.done
        if not whole or line.text[: scan.begin].strip() or not self._left:
            return
        stamped = text.rfind(line.stamp, 0, head) if line.stamp else head
        for form in self._forms:
            if (match := form.pattern.search(text)) and match.start() == stamped:
                if len(form.sources) < SOURCES and stamped <= LONGEST_REMEMBERED:
                    form.sources[text[:stamped]] = line.source
                return
        self._left -= 1
        places = layout.places(text[head:])
        if any(field and field.read(text[head + begin : head + end]) is None for field, begin, end in places):
            return  # the last value of a line without an end mark may be none, and is not counted as strange
        columns, pattern = _columns(places, text[head:])
        metrics = [column.metric for column in columns]
        if catalog.ITERATION not in metrics or len(set(metrics)) < len(metrics):
            return
        stamp = _DIGIT.sub(r"\\d", re.escape(line.stamp))
        between = re.escape(text[stamped + len(line.stamp) : head])
        form = _Form(
            pattern=re.compile(f"({stamp}){between}{pattern}", re.ASCII),
            metrics=tuple(metrics),
            converters=tuple(column.convert for column in columns),
            sure=all(column.convert in (int, float, _without_commas) for column in columns),
            factors=tuple((column.metric, column.factor) for column in columns if column.factor != 1),
            percents=tuple(column.metric for column in columns if column.percent),
            like=scan.readings[0],
            sources={text[:stamped]: line.source},
            prefixed=read_line(text[:stamped].encode("latin-1")).source == line.source,
            enders=set(),
        )
        told = form.read(text)
        if told and repr(told[0]) == repr(scan.readings[0]._replace(stamp=line.stamp)):
            self._forms.appendleft(form)
            self._words[next(word for word in layout.words if word in text)] = None


def _source(beginning: str) -> str | None:
    """Who prints a line that begins with what a launcher puts in front, with a time that is always another one."""
    line = read_line(beginning.encode("latin-1"))
    return line.source if line.stamp and line.text.strip() in ("", "[") else None


def _columns(places: Iterable[Place], text: str) -> tuple[list[_Column], str]:
    """What the groups of a pattern are, and the pattern of lines that differ from this one in numbers alone."""
    columns = []
    pattern = ""
    at = 0
    for field, begin, end in places:
        printed = text[begin:end]
        value = _like(printed)
        if field is not None and field.metric is not None:
            columns.append(_Column(field.metric, _converter(field, printed), field.factor, field.read is percent))
            value = f"({value.removesuffix('%')}){'%' if field.read is percent else ''}"
        pattern += _between(text[at:begin]) + value
        at = end
    return columns, pattern + re.escape(text[at:].rstrip()) + r"\s*\Z"


def _converter(field: Field, printed: str) -> _Convert:
    """From a printed value to a number, for values that differ from this one in digits and signs."""
    if field.read is percent:
        return float
    plain = number(printed)
    if plain is None:
        return _without_commas if field.read is grouped and isinstance(grouped(printed), int) else field.read
    as_it_is = field.read in AS_IT_IS and repr(field.read(printed)) == repr(plain)
    return type(plain) if as_it_is else field.read


def _without_commas(printed: str) -> int:
    return int(printed.replace(",", ""))


def _like(printed: str) -> str:
    """Pattern of what differs from a value in digits and signs alone."""
    return _DIGITS.sub(r"\\d{1,18}", re.escape(printed).replace(r"\-", "[-+]").replace(r"\+", "[-+]"))


def _between(text: str) -> str:
    """Pattern of what is in front of a value, which may be padded."""
    key = text.rstrip(" ")
    return re.escape(key) + (" +" if len(key) < len(text) else "")
