"""Reads one log, whatever its family: bytes in, records out, every physical line accounted for.

A record may be spread over several physical lines, with other ranks' lines between them. So a text that is only the
beginning of something waits, one for each source; the next physical line of that source belongs to it if together they
hold more than before.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable
from itertools import repeat

from ..records import LineCounts, Record, Summary
from .account import Account
from .forms import ENDERS, LONGEST_REMEMBERED, Told
from .history import History
from .joining import Found, Waiting, alike, begins_in, continues, has_time, is_better, is_part
from .layouts import Layouts
from .lines import Line, Splitter, read_line
from .lookback import LookBack
from .readings import Reading, State
from .table import Family, TrainingLine
from .words import DIGITS, NARROWEST, ZEROS

PATIENCE = 1000
"""Lines that the beginning of a record waits for its end; more ranks hardly print in between."""

SEAM = 60
"""Characters at the end of a line in which the head of a record may have begun."""

LONGEST_RECORD = 16_384
"""Characters of a record that is spread over lines: each line looks at all of it again."""

WITHOUT_RESULT = ("run", "phase", "start", "end")
"""Kinds of records whose lines report no result."""

_LOSS = re.compile(r"loss\W{1,4}[-+]?\d+\.?\d*", re.IGNORECASE)


class LogReader:
    """Reads a log bit by bit. Memory is constant in its length. Never raises, whatever the bytes."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._splitter = Splitter()
        self._layouts = Layouts(families)
        self._history = History()
        self._account = Account()
        self._number = 0
        self._look_back = LookBack()
        self._waiting: OrderedDict[str, Waiting] = OrderedDict()
        self._told: list[Told] = []
        """Training lines in a row that were read by their forms: their records are made together, in half the time."""
        self._held: tuple[bytes, Told] | None = None
        """The line before, read by its form, if nothing but the next line tells whether it has ended."""
        self._stamped = False
        """Whether training lines have stamps: the one of a line without may be on a long line before."""

    @property
    def counts(self) -> LineCounts:
        """What became of the lines so far; those that wait are not counted yet."""
        return self._account.counts

    @property
    def summary(self) -> Summary:
        """What was made of the log so far."""
        family = self._layouts.family
        return self._account.summary(family.name if family else None, self._history.attempt + 1)

    def feed(self, data: bytes) -> list[Record]:
        """Records of the lines that are complete with these bytes."""
        records: list[Record] = []
        begin = self._number
        unknown = empty = others = 0
        longest, long = self._noise().get, self._look_back.lines
        lines = self._splitter.feed(data)
        shapes = map(bytes.translate, lines, repeat(None), repeat(DIGITS))
        for raw, shape in zip(lines, shapes):  # noqa: B905  # each step counts: nine lines in ten end in the first branch
            size = len(raw)
            if size <= longest(shape, 0):
                unknown += 1
                if size > NARROWEST:
                    long.append(raw)
            elif raw == b"\n" and not self._waiting and not self._held:
                empty += 1
            else:
                others += 1
                self._number = begin + unknown + empty + others
                records += self._release(*self._held, raw, shape) if self._held else self._take(raw, shape)
                longest = self._noise().get
        self._number = begin + unknown + empty + others
        self._account.unknown += unknown
        self._account.empty += empty
        return records + self._tell_lines()

    def settle(self) -> list[Record]:
        """Records that only wait for what may follow. For whoever follows a log in which nothing moves."""
        if self._held:
            self._told.append(self._held[1])
            self._held = None
        records = self._tell_lines()
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

    def _noise(self) -> dict[bytes, int]:
        """What the next line may be without being looked at: nothing, if it may belong to one before."""
        if self._waiting or self._held or self._number < self._look_back.until:
            return {}
        return self._layouts.words.noise

    def _release(self, held: bytes, told: Told, raw: bytes, shape: bytes) -> list[Record]:
        """Records of the line that was held and of the next one. If that may go on with it, both are read in full."""
        self._held = None
        _, source, enders = told
        known = self._number > self._look_back.until and len(raw) <= self._layouts.words.noise.get(shape, 0)
        if known and raw.translate(ZEROS) in enders:
            self._skip_unknown(raw)
            self._told.append(told)
            return []
        line = read_line(raw)
        if is_part(line.source, source):
            text = raw.decode("latin-1")
            if known or not self._is_worth_a_look(text, shape.decode("latin-1")):
                ended = self._is_ended(held, line)
                if ended and not source and len(enders) < ENDERS and len(raw) <= LONGEST_REMEMBERED:
                    enders.add(raw.translate(ZEROS))
            else:  # the next training line
                ended = not line.text[:2].isspace() and self._layouts.forms.read(text) is not None
            if ended:
                self._told.append(told)
                return self._take(raw, shape)
        self._number -= 1
        records = self._read(held)
        self._number += 1
        return records + self._take(raw, shape)

    def _is_ended(self, held: bytes, line: Line) -> bool:
        """Whether noise cannot go on with the line that was held."""
        text = held.decode("latin-1").rstrip("\r\n")
        return self._layouts.endless is not None and self._layouts.endless.is_ended_by(text, line.text)

    def _take(self, raw: bytes, shape: bytes) -> list[Record]:
        """Records of a line that is no known noise."""
        if self._waiting:
            return self._give_up() + self._read(raw)
        text = raw.decode("latin-1")  # to search bytes takes six times as long; the words are ASCII
        told = self._layouts.forms.read(text)
        if told and (told[0].stamp or not (self._stamped and self._look_back)):
            if self._layouts.endless and len(raw) > NARROWEST:
                self._held = raw, told
            else:
                self._told.append(told)
            return []
        look = shape.decode("latin-1")
        if not self._layouts.words.has_core(look) and self._number > self._look_back.until:
            self._pass_over(raw, shape, look)
            return []
        if self._is_worth_a_look(text, look):
            return self._read(raw)
        self._skip_unknown(raw)  # it has most of a word: others of its shape may be read
        return []

    def _give_up(self) -> list[Record]:
        """Records of the text that waits longest, if that is too long."""
        source, waiting = next(iter(self._waiting.items()))
        if self._number - waiting.since <= PATIENCE + 1:
            return []
        del self._waiting[source]
        return self._finish(waiting)

    def _is_worth_a_look(self, text: str, shape: str) -> bool:
        """Whether a line has a word of a layout, or the rest of one."""
        words = self._layouts.words
        if words.has_core(shape) and (words.has_word(text) or words.has_rest(text, self._look_back)):
            return True
        return self._look_back.is_awaited(text, self._number)

    def _pass_over(self, raw: bytes, shape: bytes, look: str) -> None:
        """Count a line of noise, and remember its shape."""
        if shape.isspace() or (self._account.is_looking and "loss" in look.lower()):
            self._skip_unknown(raw)
            return
        self._account.unknown += 1
        cut = self._layouts.words.learn_noise(shape, look)
        if len(raw) > NARROWEST:
            self._keep(raw, cut=cut)

    def _keep(self, raw: bytes, *, cut: bool = True) -> None:
        """Remember a long unknown line, whose end may be the first half of a word."""
        self._look_back.lines.append(raw)
        if cut and (halves := self._layouts.words.awaited(raw.decode("latin-1").rstrip("\r\n"))):
            self._look_back.await_halves(halves, self._number)

    def _skip_unknown(self, raw: bytes) -> None:
        if len(raw) > NARROWEST:
            self._keep(raw)
        elif not raw or raw.isspace():
            self._account.empty += 1
            return
        self._account.unknown += 1
        if self._account.is_looking and b"loss" in raw.lower() and _LOSS.search(text := raw.decode("latin-1")):
            self._account.name(text)

    def _skip(self, reason: str, waiting: Waiting) -> None:
        self._account.skip(reason, waiting.lines)
        if isinstance(waiting.layout, TrainingLine):
            self._account.name(waiting.line.text)

    def _read(self, raw: bytes, *, cut: bool = False) -> list[Record]:
        records = self._tell_lines()
        line = read_line(raw)
        found = self._layouts.scan(line.text)
        if self._waiting:
            family = self._layouts.family
            more, joined = self._join(line, found, cut=cut)
            records += more
            if joined:
                return records
            if self._layouts.family is not family:  # what waited has told whose log it is
                found = self._layouts.scan(line.text)
        lines = 1
        unsure = found is None or not has_time(found[1], line)
        if self._look_back and unsure and (before := self._lost_beginning(line, found)):
            self._account.unknown -= 1
            line, found, lines = before[0], before[1], 2
        if found is None:
            self._skip_unknown(raw)
            if line.width >= NARROWEST and self._layouts.may_begin(line.text[-SEAM:]):
                self._look_back.await_halves(("",), self._number)
            return records
        waiting = Waiting(line=line, layout=found[0], scan=found[1], lines=lines, since=self._number, raw=raw)
        return records + self._finish_or_wait(waiting, cut=cut)

    def _lost_beginning(self, line: Line, alone: Found | None) -> tuple[Line, Found] | None:
        """A line together with an unknown one that holds its head, or its time; takes that out of the unknown."""
        for raw in self._look_back:
            before = read_line(raw)
            if not is_part(line.source, before.source):
                continue
            together = before._replace(text=before.text + line.text, width=line.width)
            found = self._layouts.scan(together.text)
            if found and begins_in(before, together, found[1]) and is_better(found[1], alone, before):
                self._look_back.lines.remove(raw)
                return together, found
        return None

    def _join(self, line: Line, own: Found | None, *, cut: bool) -> tuple[list[Record], bool]:
        """Records of what this line completes or ends, and whether it belongs to what waited."""
        source = line.source
        if source not in self._waiting:  # the rest of what was wrapped has not all of the prefixes
            source = next((own for own in reversed(self._waiting) if is_part(source, own)), source)
        waiting = self._waiting.get(source)
        if waiting is None:
            return [], False
        full = len(waiting.line.text) > LONGEST_RECORD
        if not full and (own is None or own[1].begin > 1 or waiting.layout.joint):
            text = waiting.line.text + waiting.layout.joint + line.text
            found = self._layouts.scan(text)
            if found and alike(found[0], waiting.layout) and continues(found[1], waiting.scan):
                together = waiting.line._replace(text=text, width=line.width)
                del self._waiting[source]
                lines = waiting.lines + 1
                more = waiting._replace(line=together, layout=found[0], scan=found[1], lines=lines, since=self._number)
                return self._finish_or_wait(more, cut=cut), True
        begun_again = own and isinstance(own[0], TrainingLine) and line.source == waiting.line.source
        if waiting.scan.state > State.OPEN or begun_again or full:
            del self._waiting[source]
            return self._finish(waiting), False
        return [], False

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
        return records

    def _finish(self, waiting: Waiting) -> list[Record]:
        """Nothing more comes for this text."""
        scan = waiting.scan
        if scan.state == State.OPEN or scan.trouble:
            if scan.done:
                self._account.count(waiting.lines, results=True)
            else:
                self._skip(scan.trouble or "cut", waiting)
            return []
        readings = scan.readings
        if isinstance(waiting.layout, TrainingLine):
            readings = self._recognize(waiting.layout, readings)
            self._stamped = self._stamped or bool(waiting.line.stamp)
            self._layouts.learn_end(scan.last_key)
            self._account.name_unread(scan.unread)
            if waiting.lines == 1 and self._layouts.is_sure:
                self._layouts.forms.learn(waiting.raw, waiting.line, waiting.layout, scan)
            places = [self._history.place(reading, waiting.line.source) for reading in readings]
            if places and not scan.done and not any(place is not None for place in places):
                self._skip("unplaced", waiting)
                return []
        records = self._tell(readings, waiting.line.source, waiting.line.stamp)
        self._account.count(
            waiting.lines, results=bool(scan.done) or any(record.kind not in WITHOUT_RESULT for record in records)
        )
        return records

    def _tell_lines(self) -> list[Record]:
        """Records of training lines that were read by their forms."""
        if not self._told:
            return []
        records: list[Record] = []
        without = 0
        for reading, source, _ in self._told:
            told = self._history.train(reading, source, reading.stamp)
            without += not told
            records += told
        self._account.count(len(self._told) - without, results=True)
        self._account.count(without, results=False)
        self._account.note(records)
        self._told.clear()
        return records

    def _recognize(self, layout: TrainingLine, readings: tuple[Reading, ...]) -> tuple[Reading, ...]:
        """What counts of a line that tells whose log it is: nothing that a companion has told."""
        another = self._layouts.recognize(layout)
        if another is None:
            return ()
        last = self._account.last_iteration or 0
        return tuple(reading for reading in readings if (reading.iteration or 0) > last) if another else readings

    def _tell(self, readings: Iterable[Reading], source: str, stamp: str) -> list[Record]:
        records: list[Record] = []
        for reading in readings:
            records += self._history.take(reading, source, stamp)
        self._account.note(records)
        return records
