"""Which lines of a log are worth a look: a few words decide, also where the end of a line has cut one."""

from __future__ import annotations

from collections.abc import Iterable

from .lines import LONGEST

NARROWEST = 80
"""Columns of the narrowest terminal: a shorter line was not wrapped here."""

BEFORE_CORE = 2
"""Letters in front of a word's core. A cut within them leaves the core on the next line; any other cut leaves at least
three letters at the end of the line, which few lines have by chance."""

SHORTEST_WITH_CORE = 6
"""Letters of a word; a shorter one is its own core."""

SHAPES = 1024
"""Shapes of noise that are remembered, of no more than LONGEST_SHAPE bytes each."""

LONGEST_SHAPE = 512

DIGITS = b"0123456789"
"""What tells lines of noise from each other. No word has one."""

ZEROS = bytes.maketrans(DIGITS, b"0" * len(DIGITS))
"""What makes lines equal that have other digits at the same places."""


class Words:
    """The words of the layouts that a log may have."""

    def __init__(self, words: Iterable[str]) -> None:
        unique = dict.fromkeys(words)
        self._words = tuple(word for word in unique if not any(other in word for other in unique if other != word))
        self._rests: dict[str, list[tuple[str, str]]] = {}
        """Cores, each with first halves that end before it and the rest of the word, which has the core."""
        self._ends: dict[str, list[tuple[str, str]]] = {}
        """Halves of words that were cut in or behind their cores, by the last character of the first half."""
        for word in self._words:
            before = BEFORE_CORE if len(word) >= SHORTEST_WITH_CORE else 0
            halves = [(word[:cut], word[cut:]) for cut in range(1, len(word))]
            self._rests.setdefault(word[before:], []).extend(halves[:before])
            for first, second in halves[before:]:
                self._ends.setdefault(first[-1], []).append((first, second))
        self._cores = tuple(self._rests)
        self._firsts = {last: tuple(first for first, _ in halves) for last, halves in self._ends.items()}
        self.noise: dict[bytes, int] = {}
        """What lines without any of that are without their digits, and how long a line of that shape may be to have
        none either: one that may have been wrapped may have been so within a word."""

    def has_core(self, text: str) -> bool:
        """Whether a text has a word or most of one; most texts have none."""
        for core in self._cores:  # noqa: SIM110  # half the cost of `any`
            if core in text:
                return True
        return False

    def has_word(self, text: str) -> bool:
        """Whether a text has one of the words."""
        for word in self._words:  # noqa: SIM110
            if word in text:
                return True
        return False

    def has_rest(self, text: str, lines: Iterable[bytes]) -> bool:
        """Whether a text has the rest of a word whose first letters are at the end of one of the lines before."""
        firsts = tuple(first for core, halves in self._rests.items() if core in text for first, _ in halves)
        return bool(firsts) and any(line.decode("latin-1").rstrip("\r\n").endswith(firsts) for line in lines)

    def awaited(self, text: str) -> tuple[str, ...]:
        """Second halves of the words that may begin at the end of a text, but for those whose core is to come."""
        if not text.endswith(self._firsts.get(text[-1:], ())):
            return ()
        return tuple(second for first, second in self._ends[text[-1]] if text.endswith(first))

    def learn_noise(self, shape: bytes, text: str) -> bool:
        """Remember what a line without any of that is without its digits; whether a word may begin at its end."""
        cut = bool(self.awaited(text.rstrip("\r\n")))
        if len(shape) <= LONGEST_SHAPE:
            if len(self.noise) >= SHAPES:
                self.noise.clear()
            self.noise[shape] = NARROWEST if cut else LONGEST
        return cut
