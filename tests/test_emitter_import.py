"""What importing the emitter costs a training image: nothing that is not there already."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import emitter

ROOT = Path(__file__).resolve().parent.parent

HIDE_OTEL = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
"""


def python(code: str) -> str:
    """Output of a fresh interpreter in which every warning is an error."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_import_loads_no_heavy_module() -> None:
    """Importing the emitter loads neither the SDK nor Grafana, YAML, HTTP or gRPC libraries."""
    loaded = python("import sys, emitter; print(*sys.modules)").split()
    heavy = (
        "opentelemetry.sdk",
        "opentelemetry.exporter",
        "grafanalib",
        "yaml",
        "requests",
        "prometheus_client",
        "grpc",
    )
    assert [name for name in loaded if name.startswith(heavy)] == []
    assert "emitter.instruments" in loaded


def test_call_sites_find_their_functions_in_the_package() -> None:
    """What Megatron-LM's call sites import is one of the package's names, and each of those is there."""
    called = {"managed_span", "span_cm", "trace_fn", "is_span_group_enabled", "safe_set_span_attributes"}
    assert called | {"record_training_metrics", "add_cli_arguments"} <= set(emitter.__all__)
    assert all(callable(getattr(emitter, name)) for name in emitter.__all__ if name != "catalog")
    assert emitter.__all__ == sorted(emitter.__all__)


def test_without_opentelemetry_everything_is_silent() -> None:
    """Where OpenTelemetry is not installed, recording does nothing and says nothing."""
    out = python(
        HIDE_OTEL + "import emitter\n"
        "from emitter.instruments import prepare\n"
        "for meter in (None, object()):\n"
        "    emitter.record_training_metrics(meter, 1.0, 2.0, 3.0, 4.0, 5, 6.0, 7.0, 8.0)\n"
        "    emitter.record(meter, emitter.catalog.RUN_PHASE, 1, {'phase': 'train'})\n"
        "prepare(object())\n"
        "assert 'opentelemetry' not in sys.modules\n"
        "try:\n"
        "    emitter.record(None, emitter.catalog.LOSS, 1, {'step': 1})\n"
        "except ValueError:\n"
        "    print('refused')\n"
    )
    assert out == "refused\n"


def test_without_opentelemetry_starting_names_the_extra() -> None:
    """Where OpenTelemetry is not installed, starting an export says what to install."""
    out = python(
        HIDE_OTEL + "import emitter\n"
        "try:\n"
        "    emitter.start('r')\n"
        "except emitter.EmitterError as error:\n"
        "    print(error)\n"
    )
    assert out.endswith("Install megatron-watch[otlp].\n")


def test_replay_to_jsonl_needs_no_opentelemetry() -> None:
    """A log becomes JSON lines with the standard library alone."""
    out = python(
        HIDE_OTEL + "import contextlib, emitter.__main__\n"
        "with contextlib.redirect_stderr(sys.stdout):\n"
        "    emitter.__main__.main(['replay', 'examples/demo.log', '--to', 'jsonl'])\n"
    )
    assert out.count('"kind": "train"') == 41


def test_only_the_ways_out_import_the_sdk() -> None:
    """The ways out of metrics, spans and logs import the SDK; whoever looks for it finds it there."""
    pattern = re.compile(r"^\s*(?:from|import) opentelemetry\.sdk", re.MULTILINE)
    importing = {
        path.name
        for path in (ROOT / "emitter").rglob("*.py")
        if pattern.search(re.sub(r"if TYPE_CHECKING:\n(?:    .*\n|\n)+", "", path.read_text(encoding="utf-8")))
    }
    assert importing == {"export.py", "log_bridge.py", "tracing.py"}


def test_imports_inside_are_relative() -> None:
    """No module names the package, which is called megatron_watch in the wheel."""
    pattern = re.compile(r"^\s*(?:from|import) (?:emitter|megatron_watch)\b", re.MULTILINE)
    for path in (ROOT / "emitter").rglob("*.py"):
        text = path.read_text(encoding="utf-8").split('"""', 2)[-1]
        assert not pattern.search(text), path
