"""Ctrl-C, kills, and the processes that a run starts."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tinyruns
from commands import said

from coalface.cli import main
from coalface.engine.processes import wait_for_workers
from coalface.experiments import run as experiment

STOPPED = "stopped; `coalface resume {}` continues the run\n"


@contextlib.contextmanager
def started(path: Path, out: Path, workers: int) -> Iterator[subprocess.Popen[str]]:
    """A run that hears Ctrl-C: a job in the background, as tests may be, ignores it, and what it starts would too."""
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{heard}; from coalface.cli.main import main; main()"
    command = [sys.executable, "-c", code, "run", str(path), "--out", str(out), "--workers", str(workers)]
    pipe, env = subprocess.PIPE, {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()
            wait_for_workers(out, patience=10)


def wait_for_round(run: subprocess.Popen[str], out: Path) -> None:
    deadline = time.monotonic() + 60
    while not list(out.glob("checkpoints/0*")) and time.monotonic() < deadline and run.poll() is None:
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.ci
def test_a_run_that_is_killed_leaves_no_words_of_its_workers(tmp_path: Path) -> None:
    path, out = tinyruns.write(tmp_path / "tiny.yaml", rounds=5000), tmp_path / "out"
    with started(path, out, workers=2) as run:
        wait_for_round(run, out)
        run.kill()
        _, errors = run.communicate(timeout=30)  # until nobody holds the pipe: workers and Python's tracker have ended
        assert errors == ""


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=(pytest.mark.slow, pytest.mark.ci))])
def test_ctrl_c_says_how_to_go_on_and_the_run_does(tmp_path: Path, workers: int) -> None:
    path, out = tinyruns.write(tmp_path / "tiny.yaml", rounds=5000), tmp_path / "out"
    with started(path, out, workers) as run:
        wait_for_round(run, out)
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does: the workers too
        printed, errors = run.communicate(timeout=30)
        assert (run.returncode, errors) == (130, STOPPED.format(out))
        assert re.search(r"tiny  stopped by Ctrl-C after \d+/5000 rounds", printed)
        wait_for_workers(out, patience=0)


@pytest.mark.parametrize(
    ("begun", "then"), [(False, "the same command starts again"), (True, "`coalface resume {}` continues the run")]
)
def test_ctrl_c_names_what_there_is_to_go_on_with(
    begun: bool, then: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(recipe: object, out: Path, callback: object) -> None:
        if begun:
            out.mkdir()
            (out / "config.yaml").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment, "run", interrupted)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    path, out = tinyruns.write(tmp_path / "tiny.yaml"), tmp_path / "my run"
    monkeypatch.setattr(sys, "argv", ["coalface", "run", str(path), "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert (ended.value.code, capsys.readouterr().err) == (130, f"stopped; {then.format(shlex.quote(str(out)))}\n")


def test_ctrl_c_while_photographs_are_aligned_says_that_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("coalface.experiments.api.align.align_folder", interrupted)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    place = str(tmp_path)
    monkeypatch.setattr(sys, "argv", ["coalface", "data", "align", place, place, "--landmarks", place, "--quiet"])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert (ended.value.code, capsys.readouterr().err) == (130, "stopped; the same command goes on where it stopped\n")


@pytest.mark.usefixtures("quick_workers")
def test_a_run_says_what_takes_a_while_before_its_rounds_and_after_them(tmp_path: Path) -> None:
    lines = said("run", tinyruns.write(tmp_path / "tiny.yaml"), "--out", tmp_path / "out", "--workers", 2).splitlines()
    rounds = [place for place, line in enumerate(lines) if line.startswith("tiny  round ")]
    assert lines[rounds[0] - 1].startswith("starting 2 worker processes") and len(rounds) == 2
    assert lines[rounds[-1] + 1].startswith("evaluating the model that the run leaves")
    assert any(line.startswith("tiny  done  2 rounds") for line in lines[rounds[-1] + 2 :])


@pytest.mark.slow
@pytest.mark.ci
def test_ctrl_c_twice_while_workers_start_leaves_no_traceback(tmp_path: Path) -> None:
    path, out = tinyruns.write(tmp_path / "tiny.yaml", rounds=5000), tmp_path / "out"
    with started(path, out, 2) as run:
        assert any("starting 2 worker processes" in line for line in run.stdout or ())
        for _ in range(2):
            time.sleep(0.7)  # the first while they import, the second while the command waits for them to end
            os.killpg(run.pid, signal.SIGINT)
        _, errors = run.communicate(timeout=60)
        assert (run.returncode, errors) == (130, STOPPED.format(out))
        wait_for_workers(out, patience=0)


@pytest.mark.slow
@pytest.mark.ci
def test_no_process_that_a_run_starts_hears_ctrl_c_not_even_the_first(tmp_path: Path) -> None:
    (tmp_path / "hearing.py").write_text("""
import signal

def say():
    print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()), flush=True)
""")
    (tmp_path / "starts.py").write_text("""
import multiprocessing
from hearing import say

if __name__ == "__main__":
    from coalface.engine import processes
    for _ in range(2):
        with processes.starting():
            started = multiprocessing.get_context("spawn").Process(target=say)
            started.start()
        started.join()
    say()
""")
    ran = subprocess.run([sys.executable, str(tmp_path / "starts.py")], capture_output=True, text=True, timeout=120)
    assert ran.stdout.split() == ["True", "True", "False"], ran.stderr


@pytest.mark.slow
@pytest.mark.ci
def test_a_script_without_a_main_guard_runs_over_workers_and_over_shards_once(tmp_path: Path) -> None:
    tests = str(Path(tinyruns.__file__).parent)
    for engine in {"workers": 2}, {"processes_per_party": {"silo-00": 2}}:
        script, out = tmp_path / "script.py", tmp_path / next(iter(engine))
        script.write_text(f"""
import pathlib, sys
sys.path.insert(0, {tests!r})
import tinyruns
print("begun", flush=True)
tinyruns.run(pathlib.Path({str(out)!r}), rounds=1, engine={ {"threads": 1, **engine} })
""")
        ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
        assert ran.returncode == 0 and (out / "summary.json").is_file(), ran.stderr
        assert ran.stdout.count("begun") == 1, ran.stdout
