"""The wheel: alone in a new environment, under its own name, it records and exports."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

USE = """
import logging, sys, urllib.request
import megatron_watch
from megatron_watch import record_training_metrics, start

assert "opentelemetry.sdk" not in sys.modules
with start("wheel", ["scrape:0"]) as export:
    record_training_metrics(export.meter, 1500.0, loss=2.5)
    host, port = export.addresses[0]
    print(urllib.request.urlopen(f"http://{host}:{port}/metrics").read().decode())
"""


def run(*command: str | Path, cwd: Path) -> str:
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.live
def test_wheel(tmp_path: Path) -> None:
    """Built, installed with its extra and nothing else of ours, the package exports; its command line works."""
    source = tmp_path / "source"
    shutil.copytree(ROOT / "emitter", source / "emitter", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    run(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, source, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if not name.split("/")[0].endswith(".dist-info")} == {"megatron_watch"}
    assert "megatron_watch/readers/megatron.py" in names

    run(sys.executable, "-m", "venv", "alone", cwd=tmp_path)
    python = tmp_path / "alone" / ("Scripts" if os.name == "nt" else "bin") / "python"
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}[otlp]", cwd=tmp_path)

    text = run(python, "-W", "error", "-c", USE, cwd=tmp_path)
    assert 'megatron_training_loss{nemo_run_id="wheel"' in text
    assert 'megatron_training_step_duration_ms_milliseconds_count{nemo_run_id="wheel"' in text
    replayed = run(
        python, "-m", "megatron_watch", "replay", ROOT / "examples" / "demo.log", "--to", "jsonl", cwd=tmp_path
    )
    assert replayed.count('"kind": "train"') == 41
    usage = run(python, "-m", "megatron_watch", "--help", cwd=tmp_path)
    assert usage.startswith("usage: python -m megatron_watch ")
