"""Span groups and the functions at call sites: what is traced, what it costs when off, and that nothing is raised."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from numbers import Integral
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode, Tracer, get_current_span

from emitter import spans
from emitter.repeats import Once
from emitter.spans import (
    GROUPS,
    PRESETS,
    is_span_group_enabled,
    managed_span,
    resolve,
    safe_set_span_attributes,
    span_cm,
    trace_fn,
)

ROOT = Path(__file__).resolve().parent.parent
DEFAULT = {"job", "checkpoint", "evaluate", "first_iteration", "inference"}
PER_STEP = DEFAULT | {
    *("model_init", "load_checkpoint", "step", "forward_backward", "optimizer", "communication", "data_loading"),
}


class Traced:
    """Spans that ended, by name."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer: Tracer = provider.get_tracer("test")

    def __getitem__(self, name: str) -> ReadableSpan:
        (span,) = [span for span in self._exporter.get_finished_spans() if span.name == name]
        return span

    def names(self) -> list[str]:
        """Names in the order of ending."""
        return [span.name for span in self._exporter.get_finished_spans()]


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A test starts with everything off and no warning given."""
    monkeypatch.setattr(spans, "_once", Once(__name__))
    yield
    spans.disable()


@pytest.fixture
def traced() -> Traced:
    """Groups `step` and `job` are on."""
    made = Traced()
    spans.enable(frozenset({"step", "job"}), made.tracer)
    return made


@pytest.mark.parametrize(
    ("specification", "groups"),
    [
        ("", DEFAULT),
        ("  ", DEFAULT),
        ("default", DEFAULT),
        ("per_step", PER_STEP),
        ("all", set(GROUPS)),
        ("profiling", set(GROUPS)),
        ("layer", {"layer"}),
        (" layer , step ", {"layer", "step"}),
        ("default,microbatch", DEFAULT | {"microbatch"}),
        ("per_step,trace_region,step", PER_STEP | {"trace_region"}),
        ("step,", {"step"}),
    ],
)
def test_specifications(specification: str, groups: set[str]) -> None:
    """A preset, a group or a mix of both is what Megatron-LM makes of it."""
    assert resolve(specification) == groups


@given(st.lists(st.sampled_from([*GROUPS, *PRESETS]), min_size=1), st.sampled_from([",", " , ", ",,"]))
def test_a_mix_is_the_union(words: list[str], comma: str) -> None:
    """Whatever is mixed in whatever order, what is on is the union of the parts."""
    assert resolve(comma.join(words)) == frozenset().union(*(resolve(word) for word in words))


@pytest.mark.parametrize(
    ("specification", "got"),
    [
        ("stepp", "'stepp'). Did you mean 'step'?"),
        ("job,perstep,xyzzy", "'perstep', 'xyzzy'). Did you mean 'per_step'?"),
    ],
)
def test_unknown_words_are_refused(specification: str, got: str) -> None:
    """Every unknown word is named, with all that exist and what comes near."""
    with pytest.raises(ValueError, match=r"^emitter\.spans: ") as caught:
        resolve(specification)
    assert str(caught.value).endswith(f"(got {got}")
    assert all(word in str(caught.value) for word in (*GROUPS, *PRESETS))


def test_only_groups_are_enabled() -> None:
    """A preset or a typo where groups belong is refused and changes nothing."""
    with pytest.raises(ValueError, match=r"\(got 'per_step'\)"):
        spans.enable(frozenset({"per_step", "job"}), Traced().tracer)
    assert not is_span_group_enabled("job")


def test_a_span_of_a_group_that_is_on(traced: Traced) -> None:
    """The block is given the span; name and attributes are the caller's, and it is the current one."""
    with managed_span("step", "megatron.train_step", **{"megatron.iteration": 7}) as span:
        assert span is get_current_span()
        assert span is not None
        span.set_attribute("megatron.skipped", False)
    assert traced["megatron.train_step"].attributes == {"megatron.iteration": 7, "megatron.skipped": False}
    assert traced["megatron.train_step"].status.status_code is StatusCode.UNSET


def test_a_group_that_is_off_makes_nothing(traced: Traced) -> None:
    """The block is given None, the current span stays, and every call gives the same object."""
    with managed_span("job", "megatron.pretrain") as outer:
        off = managed_span("layer", "megatron.layer.mlp", number=1)
        with off as span, off as again:
            assert span is again is None
            assert get_current_span() is outer
    assert off is managed_span("optimizer", "another")
    assert traced.names() == ["megatron.pretrain"]


def test_a_group_that_is_off_leaves_no_object_behind() -> None:
    """A million gated-off blocks would allocate nothing: what is alive afterwards is what was before."""

    def work() -> int:
        gc.collect()
        before = sys.getallocatedblocks()
        for _ in range(1000):
            with managed_span("layer", "megatron.layer.mlp"):
                pass
        return sys.getallocatedblocks() - before

    work()
    assert min(work() for _ in range(5)) < 10  # a thread that an earlier test left behind allocates, now and then


def test_turning_off(traced: Traced) -> None:
    """After `disable` nothing new opens; a span that is open ends as it would."""
    assert is_span_group_enabled("step")
    with managed_span("step", "open"):
        spans.disable()
        assert not is_span_group_enabled("step")
        with managed_span("step", "late") as late, span_cm("later") as later:
            assert late is later is None
    assert traced.names() == ["open"]


def test_turning_off_for_one_tracer(traced: Traced) -> None:
    """`disable` with a tracer leaves the spans of a later run alone."""
    spans.disable(Traced().tracer)
    assert is_span_group_enabled("step")
    spans.disable(traced.tracer)
    assert not is_span_group_enabled("step")


def test_an_ungated_span(traced: Traced) -> None:
    """`span_cm` asks for no group; the tracer may be given, as Megatron-LM's call sites do."""
    other = Traced()
    with span_cm("ours", size=3) as ours, span_cm("theirs", tracer=other.tracer) as theirs:
        assert None not in (ours, theirs)
    with managed_span("step", "given", other.tracer):
        pass
    assert traced["ours"].attributes == {"size": 3}
    assert traced.names() == ["ours"]
    assert other.names() == ["theirs", "given"]


@pytest.mark.parametrize("opener", [lambda: managed_span("step", "s"), lambda: span_cm("s")])
def test_an_exception_marks_the_span_and_goes_on(traced: Traced, opener: Any) -> None:
    """The caller sees its own exception, unchanged; the span has it as an event and the status of an error."""
    error = RuntimeError("NCCL timeout")
    with pytest.raises(RuntimeError) as caught, opener():
        raise error
    assert caught.value is error
    assert error.__context__ is error.__cause__ is None
    (event,) = traced["s"].events
    assert event.attributes is not None
    assert event.attributes["exception.message"] == "NCCL timeout"
    assert traced["s"].status.status_code is StatusCode.ERROR


def test_an_exit_is_no_error(traced: Traced) -> None:
    """SystemExit and an interrupt end the span without marking it; nor is an exception marked that is not asked for."""
    with pytest.raises(SystemExit), managed_span("step", "exit"):
        sys.exit(0)
    with pytest.raises(KeyError), span_cm("unmarked", record_exception=False):
        raise KeyError
    assert all(traced[name].status.status_code is StatusCode.UNSET for name in ("exit", "unmarked"))


def test_spans_nest(traced: Traced) -> None:
    """An inner span is the child of the outer one, also across a group that is off."""
    with managed_span("job", "outer"), managed_span("layer", "off"), managed_span("step", "inner"):
        pass
    with managed_span("job", "next"):
        pass
    inner, outer = traced["inner"], traced["outer"]
    assert inner.parent is not None
    assert inner.parent.span_id == outer.context.span_id
    assert outer.parent is traced["next"].parent is None


def test_threads_do_not_nest_into_each_other(traced: Traced) -> None:
    """A span of one thread is no parent of another's, while both are open."""

    def work(number: int) -> None:
        for _ in range(50):
            with managed_span("job", f"outer {number}"), managed_span("step", f"inner {number}"):
                pass

    with managed_span("job", "main"), ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    finished = {span.context.span_id: span for span in traced._exporter.get_finished_spans()}
    for span in finished.values():
        parent = finished[span.parent.span_id].name if span.parent else None
        assert parent == (f"outer {span.name[-1]}" if span.name.startswith("inner") else None)
    assert len(finished) == 401


def in_a_thread(work: Callable[[], object]) -> None:
    """Do it in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def in_a_task(work: Callable[[], object]) -> None:
    """Do it in a context of its own, as asyncio does."""
    copy_context().run(work)


@pytest.mark.parametrize("run", [in_a_thread, in_a_task])
def test_a_span_may_end_elsewhere(
    traced: Traced, caplog: pytest.LogCaptureFixture, run: Callable[[Callable[[], object]], None]
) -> None:
    """In another thread or task it ends without a complaint, and leaves what is the present span there."""
    span = managed_span("step", "moved")
    present = []

    def work() -> None:
        with managed_span("job", "theirs"):
            span.__exit__(None, None, None)
            present.append(get_current_span().name)  # type: ignore[attr-defined]  # the SDK's

    run(span.__enter__)
    run(work)
    assert (traced.names(), present, caplog.records) == (["moved", "theirs"], ["theirs"], [])


def test_a_decorated_function(traced: Traced) -> None:
    """It is itself but for the span: name, arguments, result and exception; the group is asked for at each call."""

    @trace_fn("step", "add")
    def add(left: int, right: int = 2) -> int:
        """Sum."""
        return left // right

    assert (add.__name__, add.__doc__, add(8), add(8, right=4)) == ("add", "Sum.", 4, 2)
    with pytest.raises(ZeroDivisionError):
        add(1, 0)
    spans.disable()
    assert add(3, 3) == 1
    assert traced.names() == ["add"] * 3


def test_a_decorated_coroutine(traced: Traced) -> None:
    """The span lasts until it is done, and tasks that take turns keep their own parents."""

    @trace_fn("step", "inner")
    async def inner() -> None:
        await asyncio.sleep(0)

    async def outer(name: str) -> None:
        with managed_span("job", name):
            await inner()
            assert get_current_span().name == name  # type: ignore[attr-defined]  # the SDK's

    async def both() -> None:
        await asyncio.gather(outer("one"), outer("two"))

    asyncio.run(both())
    assert asyncio.iscoroutinefunction(inner)
    parents = {span.parent.span_id for span in traced._exporter.get_finished_spans() if span.parent is not None}
    assert parents == {traced["one"].context.span_id, traced["two"].context.span_id}


class Tensor:
    """Like a tensor on a device: a number that is no Python number."""

    def __init__(self, value: float | None) -> None:
        self._value = value

    def __float__(self) -> float:
        if self._value is None:
            raise RuntimeError("device-side assert")
        return self._value

    def __str__(self) -> str:
        raise RuntimeError("device-side assert")


@Integral.register
class LibraryInteger:
    """Like NumPy's integers: one of Python's numeric tower, and no int."""

    def __int__(self) -> int:
        return 7


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (True, True),
        (7, 7),
        (0.5, 0.5),
        ("x" * 999, "x" * 256),
        ("file \udcff", "file ?"),
        (2**63 - 1, 2**63 - 1),
        (2**63, 2.0**63),
        (10**5000, "int"),
        (LibraryInteger(), 7),
        (Tensor(2.5), 2.5),
        (Tensor(None), "Tensor"),
        ([1] * 999, str([1] * 999)[:256]),
    ],
    ids=lambda of: type(of).__name__,
)
def test_attribute_values(traced: Traced, caplog: pytest.LogCaptureFixture, value: object, read: object) -> None:
    """What OpenTelemetry takes stays; else a number or a short text; nothing is raised or complained about."""
    with managed_span("step", "s", value=value, none=None) as span:
        safe_set_span_attributes(span, {"later": value, "none": None})
    assert traced["s"].attributes == {"value": read, "later": read}
    assert type((traced["s"].attributes or {})["value"]) is type(read)
    safe_set_span_attributes(None, {"value": value})
    assert caplog.records == []


class Broken:
    """A tracer and span whose every method raises but those given."""

    def __init__(self, **methods: Any) -> None:
        self.__dict__.update(methods)

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


@pytest.mark.parametrize(
    "tracer",
    [Broken(), Broken(start_span=lambda *_, **__: Broken()), object()],
    ids=["broken tracer", "broken span", "no tracer"],
)
def test_what_fails_underneath_is_one_warning(tracer: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A tracer or span that raises costs a line of log, and the block runs and raises as if it were not there."""
    spans.enable(frozenset({"step"}), tracer)
    for _ in range(100):
        with managed_span("step", "s") as span:
            safe_set_span_attributes(span, {"a": 1})
        with pytest.raises(KeyError), span_cm("t"):
            raise KeyError
    assert 1 <= len(caplog.records) <= 2
    assert all(record.levelno == logging.WARNING and "Training goes on" in record.message for record in caplog.records)
    assert not get_current_span().get_span_context().is_valid


@pytest.mark.parametrize("name", [None, 7, ["unhashable"]])
def test_a_name_that_is_none_harms_nobody(traced: Traced, name: Any) -> None:
    """A wrong type where the name belongs does not reach the training loop."""
    done = []
    with managed_span("step", name):
        done.append(True)
    assert done


def test_known_names_are_measured_under_the_documented_name(traced: Traced) -> None:
    """Name and group come from the table, whatever group the call site says."""
    with managed_span("step", "megatron.checkpoint.save"):
        pass
    assert spans.measured_as("megatron.checkpoint.save") == ("megatron.save_checkpoint", "checkpoint")
    assert spans.measured_as("megatron.save_checkpoint") == ("megatron.save_checkpoint", "checkpoint")


def test_names_of_ones_own_are_measured_up_to_a_limit(traced: Traced) -> None:
    """A custom name of a group is measured under itself; from the 33rd on, without a group, or unfit as a label, it is
    `other`, and known names do not count.
    """
    for name in ("", "a\nb", "\udcff", "x" * 257):
        with managed_span("step", name):
            pass
        assert spans.measured_as(name) == ("other", "other")
    for name in ("megatron.train", "megatron.train_step", "megatron.train.log"):
        with managed_span("step", name):
            pass
    for number in range(100):
        with managed_span("step", f"step {number}"), span_cm(f"ungated {number}"):
            pass
    assert spans.measured_as("step 31") == ("step 31", "step")
    assert spans.measured_as("step 32") == spans.measured_as("ungated 0") == ("other", "other")
    assert len({spans.measured_as(f"step {number}") for number in range(100)}) == 32 + 1


def python(code: str) -> str:
    """Output of a fresh interpreter in which every warning is an error."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_without_opentelemetry_everything_is_silent() -> None:
    """Where OpenTelemetry is not installed, call sites and even the switch do nothing and say nothing."""
    out = python(
        "import sys\n"
        "sys.modules['opentelemetry'] = None\n"
        "from emitter import spans\n"
        "for _ in range(2):\n"
        "    with spans.managed_span('job', 'a', b=1) as one, spans.span_cm('c', tracer=object()) as two:\n"
        "        print(one, two, spans.trace_fn('job', 'a')(lambda: 3)())\n"
        "    spans.enable(spans.resolve('all'), object())\n"
    )
    assert out == "None None 3\n" * 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_traces_on() -> None:
    """A data loader that was forked inside a span opens and ends spans of its own, and the parent's goes on."""
    out = python(
        "import os, sys\n"
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "from emitter import spans\n"
        "spans.enable(spans.resolve('all'), TracerProvider(shutdown_on_exit=False).get_tracer('t'))\n"
        "with spans.managed_span('job', 'parent') as parent:\n"
        "    child = os.fork()\n"
        "    with spans.managed_span('step', 'either') as span:\n"
        "        assert span.parent.span_id == parent.context.span_id\n"
        "    if child == 0:\n"
        "        os._exit(7)\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert out == "7\n"
