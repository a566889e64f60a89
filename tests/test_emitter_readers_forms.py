"""What is known by its form, a training line or noise, is read as it would be without."""

from __future__ import annotations

import random
import re
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import alone

from emitter.readers import FAMILIES, common, forms, reader, words
from emitter.readers.forms import FORMS
from emitter.records import Summary

EXAMPLES = {family.name: family.example for family in FAMILIES}
DIGIT = re.compile(r"\d(?=[\d.]*(?: [|/]|\||,|$))")
"""Digits of values, seldom of stamps."""

NOISE = (
    "node7:8760:9309 [0] NCCL INFO comm 0x14da8c001060 rank 15 nranks 16 cudaDev 0 busId 1a000 - Init COMPLETE, a long",
    "WARNING:root:a warning that nobody needs to see is printed by every rank, again and again, until it is ite",
    "some words in front of a line, so many that it is just as wide as the terminal on which it was printed: iterat",
    "> building indices for the data set ...",
    "my loss = 0.25 in generation 7",
    "",
    "   ",
    "123",
    "ion      300/    9000 | lm loss: 1.0 |",
    "time (ms) | forward-compute: 143.50 | backward-compute: 395.25 | optimizer: 85.75 | batch-generator: 2.50",
    "[2031-05-06 07:00:31.000001] saving checkpoint at iteration      30 to /data/c in torch_dist format",
)


def outcome(text: str, size: int) -> tuple[list[str], Summary]:
    """Records as text, and the summary, of a log that came in pieces."""
    log = reader()
    data = text.encode()
    records = [record for at in range(0, len(data), size) for record in log.feed(data[at : at + size])]
    records += log.close()
    assert log.counts.total == len(data.splitlines())
    return [repr(record) for record in records], log.summary


def outcome_without_forms(text: str, size: int) -> tuple[list[str], Summary]:
    """The same where each line is read as if it were the first one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forms, "LEARNED", 0)
        patch.setattr(words, "LONGEST_SHAPE", -1)
        return outcome(text, size)


def changed(order: random.Random, line: str, share: float) -> str:
    """A line with other digits, signs and blanks, seldom with another value or one key less."""
    line = DIGIT.sub(lambda match: str(order.randrange(10)) if order.random() < share else match.group(), line)
    kind = order.randrange(12)
    if kind == 0:
        return line.replace(" ", "  ", order.randrange(9))
    if kind == 1:
        return re.sub(r"loss: \S+", f"loss: {order.choice(('nan', 'inf', '-1.5', '1', '7e-05', '-', ''))}", line)
    if kind == 2:
        return re.sub(r"\| grad norm[^|]*", "", line)
    if kind == 3:
        return line.replace("E+", "E-")
    if kind == 4:
        return line[: order.randrange(len(line))]
    return line


@settings(max_examples=200)
@given(
    st.integers(0, 2**32),
    st.sampled_from(sorted(EXAMPLES)),
    st.sampled_from(("", "0: ", "[default7]:", "INFO [2031-02-03 04:05:06] >> ")),
    st.sampled_from((0, 0, 90, 130)),
    st.sampled_from((0.0, 0.3, 1.0)),
)
def test_forms_change_nothing(seed: int, name: str, prefix: str, width: int, share: float) -> None:
    """Lines that are read by a form learned from others give the same records and counts as on their own."""
    order = random.Random(seed)
    lines = [changed(order, EXAMPLES[name], share) for _ in range(12)]
    lines = [prefix.replace("0", str(order.randrange(3))) + line for line in lines]
    lines += [DIGIT.sub(str(order.randrange(10)), order.choice(NOISE)) for _ in range(30)]
    order.shuffle(lines)
    if width:
        lines = [line[at : at + width] for line in lines for at in range(0, len(line) or 1, width)]
    text = "".join(f"{line}\n" for line in lines)
    size = order.choice((7, 300, 10_000))
    assert outcome(text, size) == outcome_without_forms(text, size)


@pytest.mark.parametrize("name", sorted(EXAMPLES.keys() - {"nemo1", "nemo2", "deepspeed"}))
def test_most_lines_are_read_by_a_form(name: str) -> None:
    """Of a log whose lines differ in numbers alone, all but the first few are read by the form of those."""
    log = reader()
    read = []
    for step in range(120, 128):
        line = EXAMPLES[name].replace("120", str(step))
        read.append(log._layouts.forms.read(line) is not None)
        log.feed(f"{line}\n".encode())
    assert read[-5:] == [True] * 5


@pytest.mark.parametrize("name", ["megatron", "torchtitan", "megatron-deepspeed"])
def test_a_time_in_front_of_the_time(name: str) -> None:
    """A collector's time in front, which is always another one, with a rank or without, does not hinder that."""
    log = reader()
    read = []
    for step in range(120, 132):
        line = f"2031-05-06T07:00:{step - 100}.5Z {'0: ' * (step % 2)}{EXAMPLES[name].replace('120', str(step))}"
        read.append(log._layouts.forms.read(line))
        log.feed(f"{line}\n".encode())
    assert [told and told[1] for told in read[-4:]] == ["", "0:", "", "0:"]


def test_a_source_behind_the_time() -> None:
    """A line that tells its rank behind its time is not taken for one of what is in front alone."""
    log = reader()
    for step in range(120, 124):
        log.feed(f"[rank3]: {EXAMPLES['primus'].replace('120', str(step))}\n".encode())
    assert log._layouts.forms.read(f"[rank3]: {EXAMPLES['primus']}") is not None
    assert log._layouts.forms.read(f"2031-05-06T07:00:01.5Z {EXAMPLES['primus']}") is None


def test_long_beginnings_are_not_remembered() -> None:
    """A line behind a name as long as a page is read, and its beginning takes no memory."""
    log = reader()
    example = EXAMPLES["megatron"]
    lines = [f"[{'n' * length}:1]: {example}" for length in (9, 600)]
    for step, line in enumerate((example, example, *lines), 121):
        log.feed(f"{line.replace('120/', f'{step}/')}\n".encode())
    assert [log._layouts.forms.read(line) is not None for line in lines] == [True, False]
    assert log.summary.results == 4


def test_a_line_without_an_end_mark_waits_for_the_next_one() -> None:
    """Of a line that is read by a form the record comes when noise, or the next such line, shows that it has ended."""
    log = reader("nemo2")
    example = EXAMPLES["nemo2"]
    log.feed(f"{example}\n{NOISE[0]}\n".encode())
    second = example.replace("global_step: 119", "global_step: 120")
    assert log._layouts.forms.read(second) is not None
    assert log.feed(f"{second}\n".encode()) == []
    assert [record.kind for record in log.feed(f"{NOISE[0]}\n".encode())] == ["train"]
    third = example.replace("global_step: 119", "global_step: 121")
    assert log.feed(f"{third}\n".encode()) == []
    assert [record.kind for record in log.settle()] == ["train"]
    assert (log.counts.records, log.counts.skipped) == (3, 2)


def test_a_line_that_is_read_by_a_form_may_go_on() -> None:
    """What a line without an end mark has on the next physical line belongs to it, by a form or not."""
    log = reader("nemo2")
    example = EXAMPLES["nemo2"]
    second = example.replace("global_step: 119", "global_step: 120")
    log.feed(f"{example}\n{NOISE[0]}\n{second}\n".encode())
    (record,) = [*log.feed(b"7 | lr: 1.0\n"), *log.close()]
    assert 614407 in record.values.values()


def test_a_form_is_not_learned_from_a_value_that_is_none() -> None:
    """A line whose last value is empty is read, and teaches nothing."""
    log = reader("nemo2")
    log.feed(f"{EXAMPLES['nemo2']} | memory/peak_allocated_mem:\n\n".encode())
    assert log.summary.results == 1
    assert len(log._layouts.forms._forms) == 0


def test_the_rest_of_a_wrapped_word_is_no_noise() -> None:
    """The rest of a line whose beginning is missing does not hide those whose beginning is there."""
    lines = [EXAMPLES["megatron"].strip().replace("120/", f"{step}/") for step in range(120, 160, 10)]
    prefix = "x" * (77 - lines[0].index("iteration")) + " "
    wrapped = [piece for line in lines[1:] for piece in re.findall(".{1,80}", prefix + line)]
    assert wrapped[1].startswith("eration")
    log = reader()
    log.feed("".join(f"{line}\n" for line in [lines[0], lines[0], *wrapped[1:]]).encode())
    log.close()
    assert log.summary.results == 3


def test_a_digit_within_a_word_is_no_noise() -> None:
    """A line that would have a word if it had not a digit there does not hide those that have the word."""
    example = EXAMPLES["nanogpt"]
    log = reader()
    log.feed(f"my loss = 0.25\n{example.replace('iter 1', 'it1er ')}\n{example}\n".encode())
    log.close()
    assert log.summary.results == 1


def test_words_have_no_digits() -> None:
    """No word of a layout has a digit, since noise is known by what it is without them."""
    layouts = [layout for family in FAMILIES for layout in (*family.training, *family.others)] + [*common.LAYOUTS]
    assert [word for layout in layouts for word in layout.words if re.search(r"\d", word)] == []


def test_forms_are_bounded() -> None:
    """A log whose lines are never alike, of ever new noise, ends in no more than so many forms."""
    log = reader("megatron")
    for step in range(1, 300):
        key = "".join(chr(97 + int(digit)) for digit in str(step))
        line = EXAMPLES["megatron"].replace("120/", f"{step}/").replace("| lm loss", f"| key {key}: 1.0 | lm loss")
        log.feed(f"{line}\nsome noise {key}\n".encode())
    assert log.summary.results == 299
    assert len(log._layouts.forms._forms) == FORMS


def memory(lines: int) -> int:
    """Peak of the memory that reading a log of so many lines takes, one in ten of them a training line."""
    order = random.Random(3)
    log = reader()
    tracemalloc.start()
    for step in range(1, lines // 10 + 1):
        noise = "".join(f"{NOISE[0]} {order.getrandbits(64):x}\n" for _ in range(9))
        log.feed((EXAMPLES["megatron"].replace("120/", f"{step}/") + "\n" + noise).encode())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_memory_does_not_depend_on_the_length() -> None:
    """Four times the lines take no more memory, once what is remembered is as large as it gets."""
    short, long = alone(__name__, "memory(10_000), memory(40_000)")
    assert long < short * 1.05
