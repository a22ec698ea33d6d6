from __future__ import annotations

import io
import re
from collections import Counter

import pytest
from rich.console import Console

from coalface.core.errors import RunError
from coalface.experiments.callbacks.progress import Progress, _without


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def plain(encoding="utf-8"):
    raw = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    return Console(file=raw, width=80), lambda: raw.buffer.getvalue().decode(encoding).splitlines()


def record(number, **changes):
    whole = {"stage": "train", "round": number, "asked": 8, "arrived": 8, "failed": {}, "abandoned": False}
    return whole | {"bytes_down": 500_000, "bytes_up": 250_000, "loss": 3.25, "seconds": 2.0} | changes


def test_plain_output_is_one_line_a_round_with_the_time_left():
    console, lines = plain()
    clock = Clock()
    with Progress(console=console, clock=clock) as progress:
        progress.start("demo", 4)
        for r in (1, 2, 3, 4):
            clock.now += 30
            progress.round(record(r, judged={"devtest": {"eer": 20.0 + r}} if r == 2 else {}))
        progress.finish({"devtest": {"accuracy": 74.0}}, "runs/demo")
    assert lines() == [
        "demo  4 rounds",
        "demo  round 1/4  loss 3.25  8/8 parties  down 500 kB up 250 kB  0:30 elapsed, 1:30 left",
        "demo  round 2/4  loss 3.25  8/8 parties  down 1 MB up 500 kB  devtest EER 22.0  1:00 elapsed, 1:00 left",
        "demo  round 3/4  loss 3.25  8/8 parties  down 1.5 MB up 750 kB  1:30 elapsed, 0:30 left",
        "demo  round 4/4  loss 3.25  8/8 parties  down 2 MB up 1 MB  2:00 elapsed",
        "demo  done  4 rounds  2:00  devtest accuracy 74.0  down 2 MB up 1 MB  in runs/demo",
    ]


@pytest.mark.parametrize(("rounds", "expected"), [(1, 1), (50, 50), (51, 26), (1001, 48)])
def test_long_runs_print_about_every_fiftieth_and_always_the_last(rounds, expected):
    console, lines = plain()
    with Progress(console=console) as progress:
        progress.start("long", rounds)
        for r in range(1, rounds + 1):
            progress.round(record(r, judged={"devtest": {"eer": 9.0}} if r == 1 else {}))
        progress.finish({}, "x")
    round_lines = [line for line in lines() if "  round " in line]
    assert len(round_lines) == expected
    assert sum("devtest EER 9.00" in line for line in round_lines) == 1
    assert f"round {rounds}/{rounds}" in round_lines[-1]


def test_a_resumed_run_estimates_from_the_rounds_of_this_session():
    console, lines = plain()
    clock = Clock()
    with Progress(console=console, clock=clock) as progress:
        progress.start("demo", 20, already=10, sent=(5_000_000, 2_000_000))
        clock.now += 6
        progress.round(record(11, bytes_down=1_000_000, bytes_up=1_000_000))
        progress.finish({}, "x")
    assert lines()[0] == "demo  20 rounds, resumed after 10"
    assert "down 6 MB up 3 MB" in lines()[1]  # of the whole run
    assert "round 11/20" in lines()[1] and lines()[1].endswith("0:06 elapsed, 0:54 left")


def test_failures_stages_and_notes_are_said_without_control_characters():
    console, lines = plain()
    with Progress(console=console) as progress:
        progress.start("demo\x1b[2J", 2)
        progress.stage("pretrain")
        progress.stage("pretrain")
        progress.round(record(1, arrived=6, failed={"a": "x", "b\n": "y"}, abandoned=True))
        progress.note("party b\nsent \x1b[31mNaN [bold]")
        progress.finish({}, "x")
    assert lines()[1] == "demo?[2J  stage pretrain"
    assert "6/8 parties" in lines()[2] and "2 failed  1 abandoned" in lines()[2]
    assert lines()[3] == "party b sent ?[31mNaN [bold]"
    assert len(lines()) == 5


def test_a_run_that_fails_says_how_far_it_came():
    console, lines = plain()
    with pytest.raises(KeyboardInterrupt):
        with Progress(console=console) as progress:
            progress.start("demo", 9)
            progress.round(record(1))
            raise KeyboardInterrupt
    assert lines()[-1] == "demo  stopped by Ctrl-C after 1/9 rounds"


@pytest.mark.parametrize("width", [1, 20, 80])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_live_view_fits_any_terminal(width, encoding):
    raw = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    console = Console(file=raw, width=width, height=10, force_terminal=True, legacy_windows=False)
    with Progress(console=console) as progress:
        for name in ("demo-größe", "second"):
            progress.start(name, 3)
            for r in (1, 2, 3, 4):  # one more than was said: the view must bear it
                progress.round(record(r, loss=None, judged={"devtest": {"accuracy": 70.0}}))
            progress.finish({"devtest": {"accuracy": 71.5}}, "runs/x")
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", raw.buffer.getvalue().decode(encoding))
    if width >= 80:
        assert "round 2/3" in text and "second  done  4 rounds" in text and "accuracy 71.5" in text


@pytest.mark.parametrize("width", [60, 120])
def test_the_live_view_crops_no_figure(width):
    raw = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    console = Console(file=raw, width=width, height=20, force_terminal=True, color_system=None, legacy_windows=False)
    figures = {
        "held-out-people-balanced": {"accuracy": 76.7, "accuracy_se": 2.1},
        "enrolled by codewords": {"eer": 9.5},
    }
    with Progress(console=console) as progress:
        progress.start("one-identity-fedface-from-scratch", 1)
        progress.round(record(1, arrived=6, failed={"a": "x"}, abandoned=True, judged=figures))
        lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", raw.buffer.getvalue().decode()).replace("\r", "").splitlines()
    title = max(place for place, line in enumerate(lines) if line == "one-identity-fedface-from-scratch  round 1/1")
    view = lines[title:]
    assert set(view[1]) == {"━"}
    for part in ("loss 3.25", "6/8 parties", "held-out-people-balanced accuracy 76.7 ± 2.1", "1 failed", "1 abandoned"):
        assert any(f"  {part}  " in f"  {line}  " for line in view), (part, view)
    assert any("enrolled by codewords EER 9.50" in line for line in view) and view[-1].endswith("elapsed")
    assert all(len(line) <= width for line in view)


def test_what_takes_a_while_is_said_once():
    console, lines = plain()
    with Progress(console=console) as progress:
        progress.doing("reading the images")
        progress.doing("reading the images")
        progress.start("demo", 1)
        progress.doing("starting 2 workers\x1b[2J")
        progress.round(record(1))
        progress.finish({}, "x")
    assert [line for line in lines() if "demo" not in line] == ["reading the images", "starting 2 workers?[2J"]


def test_the_end_says_which_rounds_were_abandoned_and_who_was_missing():
    console, lines = plain()
    with Progress(console=console) as progress:
        missing = record(1, arrived=7, failed={"silo-02": "not there"}, abandoned=True)
        progress.start("demo", 4, already=1, before=[missing])
        progress.round({**missing, "round": 2})
        progress.round(record(3, arrived=7, failed={"silo\x1b-05": "refused"}))
        progress.round(record(4))
        progress.finish({}, "x")
        progress.start("large", 1)
        progress.round(record(1, failed={f"client-{n}": "dropped out" for n in range(1003)}))
        progress.finish({}, "x")
    finished, large = (line for line in lines() if "  done  " in line)
    assert "2 of 4 rounds abandoned  without silo-02 in 2 rounds, silo?-05 in 1 round  in x" in finished
    assert "without client-0 in 1 round, client-1 in 1 round, client-2 in 1 round and 1,000 others  in x" in large


def test_a_record_with_nothing_in_it_is_a_round():
    console, lines = plain()
    with Progress(console=console) as progress:
        progress.start("demo", 0)
        progress.round({"loss": float("nan"), "failed": None, "judged": None, "asked": "x"})
        progress.finish({}, "x")
    assert "round 1/0  down 0 B up 0 B" in lines()[1]


def test_a_loss_that_jumps_is_told_once_and_no_other():
    console, lines = plain()
    with Progress(console=console, clock=Clock()) as progress:
        progress.start("demo", 6, 2, before=[record(1, loss=3.0), record(2, loss=2.0)])
        for number, loss in ((3, 7.4), (4, 30.0), (5, 12.0)):
            progress.round(record(number, loss=loss))
        progress.round(record(1, stage="next", loss=900.0))
    notes = [line for line in lines() if "the mean training loss" in line]
    assert len(notes) == 1 and "round 4" in notes[0] and "30" in notes[0] and "4.133" in notes[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the kernel's packages
def test_a_notebook_shows_a_bar_in_one_output_and_then_the_figures():
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    cells = [
        "from coalface.experiments.callbacks.progress import Progress\nprogress = Progress().__enter__()\n"
        "progress.start('first', 1); progress.round({}); progress.finish({'unseen': {'eer': 9.5}}, 'runs/a')",
        "progress.start('a<b', 2); progress.round({'loss': 3.25, 'asked': 2, 'arrived': 2})",
        "progress.note('a note')",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=60).execute()
    (finished,), (live,), (note,) = (cell.outputs for cell in notebook.cells)
    assert finished.data["text/plain"].startswith("first  done  1 round")
    assert "unseen EER 9.50" in finished.data["text/html"].replace("&nbsp;", "")
    assert '<b>a&lt;b &nbsp;round 1/2</b><br><progress max="2" value="1"' in live.data["text/html"]
    assert "loss 3.25 &nbsp;2/2 parties" in live.data["text/html"]
    assert note.text == "a note\n"


@pytest.mark.parametrize(("parties", "end"), [(3, "in 1 round"), (4, " and 1 other"), (6, " and 3 others")])
def test_parties_without_a_reply_are_named_up_to_three(parties, end):
    assert _without(Counter(f"silo-{place}" for place in range(parties))).endswith(end)


def test_an_error_is_said_to_stop_a_run_and_its_class_is_not():
    console, lines = plain()
    with pytest.raises(RunError), Progress(console=console) as progress:
        progress.start("tiny", 3)
        raise RunError("no")
    assert lines()[-1] == "tiny  stopped by an error after 0/3 rounds"
