"""Layouts as tables: the fields of a training line, and other lines that are known by their words."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

from .. import catalog
from ..catalog import Metric
from .lines import last_stamp
from .readings import Layout, Number, Reading, Scan, State

_NUMBER = re.compile(
    r"(?P<integer>[+-]?\d{1,18})|[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?|nan|[+-]?inf", re.ASCII | re.IGNORECASE
)
_LOSS = re.compile(r"(?<![a-z])loss(?![a-z])", re.IGNORECASE)
_UNFIT = re.compile(r"[^0-9a-z/%+]+")


def number(printed: str) -> Number | None:
    """A number as Python and C print it; an integer stays one. None if it is something else."""
    if printed.isdigit() and printed.isascii() and len(printed) <= 18:
        return int(printed)
    match = _NUMBER.fullmatch(printed)
    if match is None:
        return None
    return int(printed) if match.lastgroup else float(printed)


@lru_cache(maxsize=1000)
def squeezed(key: str) -> str:
    """A key without what differs between spellings, or is lost where a line is wrapped: case, blanks, marks."""
    return _UNFIT.sub("", key.lower())


@dataclass(frozen=True, kw_only=True)
class Field:
    """One value of a training line: where it stands, and which metric it is.

    Raises: ValueError if it has no key, or is per GPU and cumulative at once.
    """

    metric: Metric | None
    """None for what is known and has no metric."""
    keys: tuple[str, ...]
    """As printed; case, blanks and punctuation do not matter. In a line that has several the first of these counts."""
    factor: Number = 1
    """From the printed unit to the metric's."""
    read: Callable[[str], Number | None] = number
    """From the printed text to a number; None if it is none."""
    per_gpu: bool = False
    """Printed for one GPU, while the metric is for the whole job."""
    cumulative: bool = False
    """Printed as a total, while the metric counts what is new."""

    def __post_init__(self) -> None:
        where = "emitter.readers: a field"
        if not self.keys or not all(squeezed(key) for key in self.keys):
            raise ValueError(f"{where} has keys with letters (got {self.keys!r}). Write them as they are printed.")
        if self.per_gpu and self.cumulative:
            raise ValueError(f"{where} is per GPU or cumulative (got both for {self.keys!r}). Choose one.")


Place = tuple[Field | None, int, int]
"""A value's field, if it is known, and where in a text the value begins and ends."""


class Values:
    """The values of a training line by metric, as they are printed: for the job, for one GPU, as totals."""

    def __init__(self) -> None:
        self.plain: dict[Metric, Number] = {}
        self.per_gpu: dict[Metric, Number] = {}
        self.cumulative: dict[Metric, Number] = {}
        self._spare: set[tuple[Metric, bool]] = set()
        """Metrics, and whether for one GPU, whose values have a key that is not the first of its field."""

    def add(self, field: Field, key: str, value: Number) -> None:
        """Take a value. The first of a metric counts, but for one whose key is the first of its field."""
        if field.metric is None:
            return
        into = self.per_gpu if field.per_gpu else self.cumulative if field.cumulative else self.plain
        place = field.metric, field.per_gpu
        spare = key != squeezed(field.keys[0])
        if field.metric not in into or (place in self._spare and not spare):
            into[field.metric] = value if field.factor == 1 else value * field.factor
            (self._spare.add if spare else self._spare.discard)(place)


_COUNTERS = {
    "iteration": Field(metric=catalog.ITERATION, keys=("iteration",)),
    "target": Field(metric=catalog.TARGET_ITERATION, keys=("target",)),
}
"""Groups of a head."""


@dataclass(frozen=True, kw_only=True)
class TrainingLine:
    """A training line: its head with the iteration, then keys and values in any order."""

    words: tuple[str, ...]
    """One of these, without a digit, is in every such line."""
    head: re.Pattern[str]
    """Where a line begins. Its groups `iteration` and `target` are the counters; what it lacks, fields have."""
    fields: tuple[Field, ...]
    last: str = ""
    """A key that makes a line complete wherever it stands; empty if the layout has none."""
    separator: str = "|"
    assign: str = ":"
    """Between key and value. Where it is missing, the last blank is."""
    closed: bool = True
    """Whether a separator ends the line, so that its last value cannot be cut."""
    pair: re.Pattern[str] | None = None
    """A key and its value in two groups, for lines that no separator divides."""
    silent_nan: bool = False
    """Whether a NaN loss is left out instead of printed, by every version that prints `last`. Where a key that nobody
    knows speaks of a loss, that is taken for it, and nothing is said."""
    until: str = ""
    """Text with which something else begins on the same line."""
    end: str = ""
    """Text at the end of every such line; one without it is cut."""
    signature: str = ""
    """Text that tells this layout from others with the same head."""
    joint: str = ""
    rounded: bool = False
    """Whether the iteration is rounded, so that lines in a row have the same one."""

    @cached_property
    def _by_key(self) -> dict[str, Field]:
        return {squeezed(key): field for field in self.fields for key in field.keys}

    @cached_property
    def endless(self) -> bool:
        """Whether nothing tells the end of such a line, but for what the next one is."""
        return not (self.closed or self.pair or self.last or self.until or self.end or self.signature or self.joint)

    def is_ended_by(self, text: str, following: str) -> bool:
        """Whether an endless line cannot go on with a text that has no word: its last value would be none."""
        if not following.strip():
            return True
        key, found, printed = text.rpartition(self.separator)[2].partition(self.assign)
        if not found or self.separator in following or not text[-1].isdigit():
            return False  # behind a digit no word begins that the text goes on with
        field = self._by_key.get(squeezed(key))
        read = number if field is None else field.read
        return read(printed.strip()) is not None and read((printed + following).strip()) is None

    def scan(self, text: str, ends: frozenset[str]) -> Scan | None:
        """The training lines of a text: usually one, more where ranks were glued."""
        heads = list(self.head.finditer(text))
        if not heads or self.signature not in text:
            return None
        done: list[Reading] = []
        begin = 0
        for head, following in pairwise(heads):
            before = self._one(text, begin, head, following.start(), ends)
            begin = head.end()
            if before.state >= State.ENOUGH:
                done += before.readings
        return self._one(text, begin, heads[-1], len(text), ends, tuple(done))

    def _one(
        self, text: str, begin: int, head: re.Match[str], end: int, ends: frozenset[str], done: tuple[Reading, ...] = ()
    ) -> Scan:
        body, over = self._body(text, head.end(), end)
        pairs, tail = self._pairs(body)
        values = Values()
        if target := head.groupdict().get("target"):
            values.plain[catalog.TARGET_ITERATION] = int(target)
        unread: list[str] = []
        strange = extent = 0
        for at, (printed_key, printed) in enumerate(pairs, 1):
            key = squeezed(printed_key)
            field = self._by_key.get(key)
            value = number(printed.strip()) if field is None else field.read(printed.strip())
            whole = self.closed or at < len(pairs)  # else its value may go on
            extent += 0 if value is None else len(printed_key) + len(printed.strip())
            if value is None and whole and (field is not None or not printed.strip()[:1].isdigit()):
                strange += 1  # an unknown key may have a value in any unit
            if field is not None and value is not None:
                values.add(field, key, value)
                continue
            unread.append(printed_key.strip())
            if whole and field is not None and field.metric is catalog.LOSS:
                return Scan(state=State.OPEN, trouble="garbled", begin=head.start(), done=done)
        other_loss = any(_LOSS.search(key) and squeezed(key) not in self._by_key for key in unread)
        keys = [squeezed(key) for key, _ in pairs]
        key = keys[-1] if keys else ""
        last_key = squeezed(self.last)
        last = bool(last_key) and last_key in keys
        state = State.OPEN
        known_end = over >= 0 or (self.closed and key in ends)
        if self.end and over < 0:
            pass
        elif last:
            state = State.WHOLE if known_end else State.ENOUGH
        elif catalog.LOSS in values.plain and not tail.strip() and (known_end or not last_key or last_key not in ends):
            state = State.WHOLE if known_end else State.ENDED
        return Scan(
            state=state,
            readings=(self._reading(text, begin, head, values, last and not other_loss),),
            progress=len(pairs) if self.closed else extent,
            begin=head.start(),
            done=done,
            last_key=key,
            unread=tuple(unread),
            strange=strange,
        )

    def _reading(self, text: str, begin: int, head: re.Match[str], values: Values, last: bool) -> Reading:
        iteration = head.groupdict().get("iteration") or values.plain.pop(catalog.ITERATION, None)
        return Reading(
            kind="train",
            iteration=None if iteration is None else int(iteration),
            values=values.plain,
            per_gpu=values.per_gpu,
            cumulative=values.cumulative,
            stamp=last_stamp(text[begin : head.start()]) if head.start() > begin else "",
            silent_nan=self.silent_nan and last,
            rounded=self.rounded,
        )

    def places(self, text: str) -> list[Place]:
        """The fields of a text with one training line, from left to right, with where their values begin and end."""
        head = self.head.search(text)
        if head is None:
            return []
        found: list[Place] = [(_COUNTERS[name], *head.span(name)) for name in head.groupdict() if head[name]]
        at = head.end()
        for key, printed in self._pairs(self._body(text, at, len(text))[0])[0]:
            begin = text.index(printed.strip(), text.index(key, at) + len(key))
            at = begin + len(printed.strip())
            found.append((self._by_key.get(squeezed(key)), begin, at))
        return sorted(found, key=lambda place: place[1])

    def _body(self, text: str, begin: int, end: int) -> tuple[str, int]:
        """What is behind a head, and where something else follows; -1 if nothing does."""
        stop = self.until or self.end
        over = text.find(stop, begin, end) if stop else -1
        return text[begin : end if over < 0 else over + len(self.end)], over

    def _pairs(self, body: str) -> tuple[list[tuple[str, str]], str]:
        """Keys and values as printed, and what is left behind the last separator."""
        if self.pair is not None:
            return [(match[1], match[2]) for match in self.pair.finditer(body)], ""
        parts = body.split(self.separator)
        tail = "" if not self.closed else parts.pop()
        pairs = []
        for part in parts:
            key, found, printed = part.partition(self.assign)
            if not found:
                key, found, printed = part.strip().rpartition(" ")
                found = found if squeezed(key) in self._by_key else ""
            if found:
                pairs.append((key, printed))
        return pairs, tail


class PercentLine(TrainingLine):
    """A training line that a percent sign ends: no other line is taken for its continuation."""

    def scan(self, text: str, ends: frozenset[str]) -> Scan | None:
        """The training lines of a text."""
        scan = super().scan(text, ends)
        ended = scan is not None and scan.state is State.ENOUGH and text.rstrip().endswith("%")
        return scan._replace(state=State.WHOLE) if scan is not None and ended else scan


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Any other line that is known by its words."""

    words: tuple[str, ...]
    """One of these, without a digit, is in every such line."""
    pattern: re.Pattern[str]
    make: Callable[[re.Match[str]], Reading]
    begin: re.Pattern[str] | None = None
    """What such a line begins with, where the pattern needs more than 80 columns."""
    joint: str = ""

    def scan(self, text: str, ends: frozenset[str]) -> Scan | None:
        """The line's statement. What reaches the end of the line may go on: a number, a time."""
        if match := self.pattern.search(text):
            state = State.ENOUGH if match.end() >= len(text.rstrip()) else State.WHOLE
            return Scan(state=state, readings=(self.make(match),), begin=match.start(), progress=len(text))
        if self.begin is not None and (match := self.begin.search(text)):
            return Scan(state=State.OPEN, trouble="unknown", begin=match.start(), progress=len(text))
        return None


def known(match: re.Match[str]) -> Reading:
    """Nothing to report."""
    return Reading(kind="known")


@dataclass(frozen=True, kw_only=True)
class Family:
    """The layouts of one project and its relatives.

    Raises: ValueError if the example is no line of it.
    """

    name: str
    """As `--format` has it."""
    title: str
    """Projects and years."""
    example: str
    """One training line."""
    training: tuple[TrainingLine, ...]
    """The first layout with which a line can be read counts."""
    others: tuple[Layout, ...] = ()
    signatures: tuple[str, ...] = ()
    """Text that tells it from families with the same head. One of these is in the line by which a log is recognized;
    the lines that follow need none."""
    companion: bool = False
    """Whether its lines stand beside those of another family, which has the log as soon as it shows."""

    def __post_init__(self) -> None:
        looked_at = [layout for layout in self.training if any(word in self.example for word in layout.words)]
        scans = [layout.scan(self.example, frozenset()) for layout in looked_at]
        if not any(scan and scan.state > State.OPEN for scan in scans):
            raise ValueError(
                f"emitter.readers: the example of {self.name!r} is a training line of it (got {self.example!r}). "
                "Correct the example, the table or its words."
            )
        if not self.signed(self.example):
            raise ValueError(
                f"emitter.readers: the example of {self.name!r} has one of {self.signatures!r} (got {self.example!r}). "
                "Correct the example or the signatures."
            )

    def signed(self, text: str) -> bool:
        """Whether a text can be the line by which a log is recognized."""
        return not self.signatures or any(signature in text for signature in self.signatures)
