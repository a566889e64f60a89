"""Reads one log, whatever its family: bytes in, records out, every physical line accounted for.

A record may be spread over several physical lines, with other ranks' lines between them. So a text that is only the
beginning of something waits, one for each source; the next physical line of that source belongs to it if together they
hold more than before.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable

from .. import catalog
from ..catalog import Metric
from ..records import LineCounts, Record, Summary
from . import common
from .forms import Forms, Told
from .history import History
from .joining import Found, Waiting, alike, begins_in, continues, has_time, is_better, is_part
from .lines import Line, Splitter, read_line
from .readings import Layout, Reading, Scan, State
from .table import Family, TrainingLine
from .words import DIGITS, NARROWEST, Words

PATIENCE = 1000
"""Lines that the beginning of a record waits for its end; more ranks hardly print in between."""

LOOK_BACK = 4
"""Long unknown lines that may turn out to be the beginning of a record."""

SHAPES = 64
"""Combinations of values that are counted."""

SEAM = 60
"""Characters at the end of a line in which the head of a record may have begun."""

LONGEST_RECORD = 16_384
"""Characters of a record that is spread over lines: each line looks at all of it again."""

UNREAD_LIMIT = 32
"""Unread keys that are named."""

WITHOUT_RESULT = ("run", "phase", "start", "end")
"""Kinds of records whose lines report no result."""

_LOSS = re.compile(r"loss\W{1,4}[-+]?\d+\.?\d*", re.IGNORECASE)


class LogReader:
    """Reads a log bit by bit. Memory is constant in its length. Never raises, whatever the bytes."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = tuple(families)
        self._family: Family | None = self._families[0] if len(self._families) == 1 else None
        self._splitter = Splitter()
        self._history = History()
        self._waiting: OrderedDict[str, Waiting] = OrderedDict()
        self._held: tuple[bytes, Told] | None = None
        """The line before, read by its form, if nothing but the next line tells whether it has ended."""
        self._long: deque[bytes] = deque(maxlen=LOOK_BACK)
        self._awaited: tuple[str, ...] = ()
        """Second halves of words that one of the long lines may have begun."""
        self._alert_until = 0
        """Number of the line up to which they may come."""
        self._unknown = 0
        self._stamped = False
        """Whether training lines have stamps: the one of a line without may be on a long line before."""
        self._ends: frozenset[str] = frozenset()
        self._number = 0
        self._records = self._recognized = self._results = 0
        self._skipped: Counter[str] = Counter()
        self._unread: dict[str, None] = {}
        self._unlike: str | None = None
        self._shapes: dict[tuple[Metric, ...], int] = {}
        """Which values the training lines have, and how many have those."""
        self._first: int | None = None
        self._last: int | None = None
        self._choose()

    def _choose(self) -> None:
        """Take the layouts of the family, or of all while nobody knows which it is."""
        families = (self._family,) if self._family and not self._family.companion else self._families
        self._training: tuple[tuple[TrainingLine, Family], ...] = tuple(
            (layout, family) for family in families for layout in family.training
        )
        layout = self._training[0][0]
        self._endless = layout if len(self._training) == 1 and layout.endless else None
        others: dict[int, Layout] = {}
        for family in families:
            others.update({id(layout): layout for layout in family.others})
        others.update({id(layout): layout for layout in common.LAYOUTS})
        self._others = tuple(others.values())
        layouts: list[Layout] = [*(layout for layout, _ in self._training), *self._others]
        self._forms = Forms()
        self._words = Words(word for layout in layouts for word in layout.words)

    @property
    def counts(self) -> LineCounts:
        """What became of the lines so far; those that wait are not counted yet."""
        reasons = {**self._skipped, "unknown": self._unknown + self._skipped["unknown"]}
        return LineCounts(
            records=self._records,
            recognized=self._recognized,
            reasons={reason: lines for reason, lines in reasons.items() if lines},
        )

    @property
    def summary(self) -> Summary:
        """What was made of the log so far."""
        return Summary(
            format=self._family.name if self._family else None,
            counts=self.counts,
            results=self._results,
            attempts=self._history.attempt + 1,
            first_iteration=self._first,
            last_iteration=self._last,
            unread=tuple(self._unread),
            unlike=self._unlike,
            absent=self._absent(),
        )

    def _absent(self) -> dict[str, int]:
        present: Counter[str] = Counter()
        for metrics, times in self._shapes.items():
            present.update({metric.short: times for metric in metrics})
        total = sum(self._shapes.values())
        return {name: total - times for name, times in present.items() if times < total}

    def feed(self, data: bytes) -> list[Record]:
        """Records of the lines that are complete with these bytes."""
        records: list[Record] = []
        begin = self._number
        unknown = empty = others = 0
        longest, long = self._noise().get, self._long
        for raw in self._splitter.feed(data):  # each step counts: nine lines in ten end in the first branch
            size = len(raw)
            shape = raw.translate(None, DIGITS)
            if size <= longest(shape, 0):
                unknown += 1
                if size > NARROWEST:
                    long.append(raw)
            elif raw == b"\n" and not self._waiting and not self._held:
                empty += 1
            else:
                others += 1
                self._number = begin + unknown + empty + others
                records += self._release(raw, shape) if self._held else self._take(raw, shape)
                longest = self._noise().get
        self._number = begin + unknown + empty + others
        self._unknown += unknown
        self._skipped["empty"] += empty
        return records

    def _noise(self) -> dict[bytes, int]:
        """What the next line may be without being looked at: nothing, if it may belong to one before."""
        return {} if self._waiting or self._held or self._number < self._alert_until else self._words.noise

    def _release(self, raw: bytes, shape: bytes) -> list[Record]:
        """Records of the line that was held and of the next one. If that may go on with it, both are read in full."""
        if self._held is None:
            return []
        (held, told), self._held = self._held, None
        line = read_line(raw)
        if is_part(line.source, told[1]):
            text = raw.decode("latin-1")
            if self._is_noise(raw, text, shape):
                if self._is_ended(held, line):
                    self._pass_over(raw, shape)
                    return self._tell_line(told)
            elif not line.text[:2].isspace() and self._forms.read(text):  # the next training line
                return self._tell_line(told) + self._take(raw, shape)
        self._number -= 1
        records = self._read(held)
        self._number += 1
        return records + self._take(raw, shape)

    def _is_noise(self, raw: bytes, text: str, shape: bytes) -> bool:
        """Whether a line behind one that is held is not worth a look."""
        known = self._number > self._alert_until and len(raw) <= self._words.noise.get(shape, 0)
        return known or not self._is_worth_a_look(text, shape.decode("latin-1"))

    def _is_ended(self, held: bytes, line: Line) -> bool:
        """Whether noise cannot go on with the line that was held."""
        text = held.decode("latin-1").rstrip("\r\n")
        return self._endless is not None and self._endless.is_ended_by(text, line.text)

    def _pass_over(self, raw: bytes, shape: bytes) -> None:
        """Count a line of noise, and remember its shape."""
        self._skip_unknown(raw)
        if not shape.isspace() and (self._unlike or b"loss" not in shape):
            self._words.learn_noise(shape)

    def _take(self, raw: bytes, shape: bytes) -> list[Record]:
        """Records of a line that is no known noise."""
        if self._waiting:
            return self._read(raw)
        text = raw.decode("latin-1")  # to search bytes takes six times as long; the words are ASCII
        told = self._forms.read(text)
        if told and (told[0].stamp or not (self._stamped and self._long)):
            if self._endless and len(raw) > NARROWEST:
                self._held = raw, told
                return []
            return self._tell_line(told)
        if self._is_worth_a_look(text, shape.decode("latin-1")):
            return self._read(raw)
        self._pass_over(raw, shape)
        return []

    def _is_worth_a_look(self, text: str, shape: str) -> bool:
        """Whether a line has a word of a layout, or the rest of one."""
        if self._words.has_core(shape) and (self._words.has_word(text) or self._words.has_rest(text, self._long)):
            return True
        return self._number <= self._alert_until and any(half in text for half in self._awaited)

    def settle(self) -> list[Record]:
        """Records that only wait for what may follow. For whoever follows a log in which nothing moves."""
        records = []
        if self._held:
            (_, told), self._held = self._held, None
            records += self._tell_line(told)
        for source, waiting in list(self._waiting.items()):
            if waiting.scan.state > State.OPEN:
                records += self._finish(self._waiting.pop(source))
        return records

    def close(self) -> list[Record]:
        """Records of what is left; nothing more comes. A last line without an end may be cut."""
        records: list[Record] = []
        if self._held:
            (held, _), self._held = self._held, None
            records += self._read(held)
        if rest := self._splitter.close():
            self._number += 1
            records += self._read(rest, cut=not rest.endswith(b"\r"))
        while self._waiting:
            records += self._finish(self._waiting.popitem(last=False)[1])
        return records

    def _skip_unknown(self, raw: bytes) -> None:
        text = raw.decode("latin-1")
        if len(text) > NARROWEST:
            self._long.append(raw)
            if awaited := self._words.awaited(text.rstrip("\r\n")):
                self._awaited, self._alert_until = awaited, self._number + LOOK_BACK
        elif not text or text.isspace():
            self._skipped["empty"] += 1
            return
        self._unknown += 1
        if self._unlike is None and "loss" in text and _LOSS.search(text):
            self._name(text)

    def _skip(self, reason: str, waiting: Waiting) -> None:
        self._skipped[reason] += waiting.lines
        if isinstance(waiting.layout, TrainingLine):
            self._name(waiting.line.text)

    def _name(self, text: str) -> None:
        """Keep a line for the summary, if it is the first strange one."""
        if self._unlike is None:
            self._unlike = text.strip()[:200]

    def _read(self, raw: bytes, *, cut: bool = False) -> list[Record]:
        line = read_line(raw)
        found = self._scan(line.text)
        records: list[Record] = []
        if self._waiting:
            family = self._family
            records, joined = self._join(line, found, cut=cut)
            if joined:
                return records
            if self._family is not family:  # what waited has told whose log it is
                found = self._scan(line.text)
        lines = 1
        unsure = found is None or not has_time(found[1], line)
        if self._long and unsure and (before := self._lost_beginning(line, found)):
            self._unknown -= 1
            line, found, lines = before[0], before[1], 2
        if found is None:
            self._skip_unknown(raw)
            if line.width >= NARROWEST and self._begins(line.text[-SEAM:]):
                self._awaited, self._alert_until = ("",), self._number + LOOK_BACK
            return records
        waiting = Waiting(line=line, layout=found[0], scan=found[1], lines=lines, since=self._number, raw=raw)
        return records + self._finish_or_wait(waiting, cut=cut)

    def _begins(self, end: str) -> bool:
        """Whether the end of a line has the word of a training line, whose head is not all there."""
        return any(word in end for layout, _ in self._training for word in layout.words)

    def _lost_beginning(self, line: Line, alone: Found | None) -> tuple[Line, Found] | None:
        """A line together with an unknown one that holds its head, or its time; takes that out of the unknown."""
        for raw in reversed(self._long):
            before = read_line(raw)
            if not is_part(line.source, before.source):
                continue
            together = before._replace(text=before.text + line.text, width=line.width)
            found = self._scan(together.text)
            if found and begins_in(before, together, found[1]) and is_better(found[1], alone, before):
                self._long.remove(raw)
                return together, found
        return None

    def _join(self, line: Line, own: Found | None, *, cut: bool) -> tuple[list[Record], bool]:
        """Records of what this line completes or ends, and whether it belongs to what waited."""
        source = line.source
        if source not in self._waiting:  # the rest of what was wrapped has not all of the prefixes
            source = next((own for own in reversed(self._waiting) if is_part(source, own)), source)
        waiting = self._waiting.pop(source, None)
        if waiting is None:
            return [], False
        full = len(waiting.line.text) > LONGEST_RECORD
        if not full and (own is None or own[1].begin > 1 or waiting.layout.joint):
            text = waiting.line.text + waiting.layout.joint + line.text
            found = self._scan(text)
            if found and alike(found[0], waiting.layout) and continues(found[1], waiting.scan):
                together = waiting.line._replace(text=text, width=line.width)
                more = waiting._replace(line=together, layout=found[0], scan=found[1], lines=waiting.lines + 1)
                return self._finish_or_wait(more, cut=cut), True
        begun_again = own and isinstance(own[0], TrainingLine) and line.source == waiting.line.source
        if waiting.scan.state > State.OPEN or begun_again or full or self._number - waiting.since > PATIENCE:
            return self._finish(waiting), False
        self._waiting[source] = waiting
        return [], False

    def _scan(self, text: str) -> Found | None:
        """The first layout that knows a text."""
        for layout, family in self._training:
            if self._family is not family and not family.signed(text):
                continue
            for word in layout.words:
                if word in text:
                    if scan := layout.scan(text, self._ends):
                        return layout, scan
                    break
        for other in self._others:
            for word in other.words:
                if word in text:
                    if scan := other.scan(text, self._ends):
                        return other, scan
                    break
        return None

    def _finish_or_wait(self, waiting: Waiting, *, cut: bool) -> list[Record]:
        """Finish what is finished; keep what may go on."""
        scan = waiting.scan
        records = []
        if scan.done:
            records = self._tell(scan.done, waiting.line.source, waiting.line.stamp)
        if cut and scan.state <= State.ENDED:
            scan = scan._replace(state=State.OPEN)
        waiting = waiting._replace(scan=scan)
        wrapped = waiting.line.width >= NARROWEST or waiting.layout.joint
        if cut or scan.state == State.WHOLE or not wrapped or scan.trouble == "garbled":
            return records + self._finish(waiting)
        before = self._waiting.get(waiting.line.source)
        if before and before.scan.state == State.OPEN and scan.state > State.OPEN:
            return records + self._finish(waiting)  # of two that cannot both wait, the one that needs no more
        if before:
            records += self._finish(self._waiting.pop(waiting.line.source))
        self._waiting[waiting.line.source] = waiting
        if len(self._waiting) > PATIENCE:
            records += self._finish(self._waiting.popitem(last=False)[1])
        return records

    def _finish(self, waiting: Waiting) -> list[Record]:
        """Nothing more comes for this text."""
        scan = waiting.scan
        if scan.state == State.OPEN or scan.trouble:
            if scan.done:
                self._records += waiting.lines
            else:
                self._skip(scan.trouble or "cut", waiting)
            return []
        readings = scan.readings
        if isinstance(waiting.layout, TrainingLine):
            readings = self._recognize(waiting.layout, readings)
            self._stamped = self._stamped or bool(waiting.line.stamp)
            self._learn(scan)
            if waiting.lines == 1 and self._family and not self._family.companion:
                self._forms.learn(waiting.raw, waiting.line, waiting.layout, scan)
            places = [self._history.place(reading, waiting.line.source) for reading in readings]
            if places and not scan.done and not any(place is not None for place in places):
                self._skip("unplaced", waiting)
                return []
        records = self._tell(readings, waiting.line.source, waiting.line.stamp)
        self._count(
            waiting.lines, results=bool(scan.done) or any(record.kind not in WITHOUT_RESULT for record in records)
        )
        return records

    def _tell_line(self, told: Told) -> list[Record]:
        """Records of a training line that was read by its form."""
        reading, source = told
        records = self._history.take(reading, source, reading.stamp)
        self._note(records)
        self._count(1, results=bool(records))
        return records

    def _count(self, lines: int, *, results: bool) -> None:
        if results:
            self._records += lines
        else:
            self._recognized += lines

    def _recognize(self, layout: TrainingLine, readings: tuple[Reading, ...]) -> tuple[Reading, ...]:
        """Whose log it is from this line on, and what counts of the line: nothing that a companion has told."""
        family = next((family for own, family in self._training if own is layout), None)
        if family is None:  # a companion's line, looked at before the log was recognized
            return ()
        if family is self._family:
            return readings
        companion, self._family = self._family, family
        self._choose()
        if companion is None:
            return readings
        return tuple(reading for reading in readings if (reading.iteration or 0) > (self._last or 0))

    def _learn(self, scan: Scan) -> None:
        if scan.last_key not in self._ends:
            self._ends = frozenset([*sorted(self._ends)[:UNREAD_LIMIT], scan.last_key])
        if len(self._unread) < UNREAD_LIMIT:
            self._unread.update(dict.fromkeys(scan.unread[:UNREAD_LIMIT]))

    def _tell(self, readings: Iterable[Reading], source: str, stamp: str) -> list[Record]:
        records: list[Record] = []
        for reading in readings:
            records += self._history.take(reading, source, stamp)
        self._note(records)
        return records

    def _note(self, records: Iterable[Record]) -> None:
        """Keep for the summary what results there are."""
        for record in records:
            if record.kind == "train":
                self._results += 1
                shape = tuple(record.values)
                times = self._shapes.get(shape, 0)
                if times or len(self._shapes) < SHAPES:
                    self._shapes[shape] = times + 1
                self._last = int(record.values[catalog.ITERATION])
                if self._first is None:
                    self._first = self._last
