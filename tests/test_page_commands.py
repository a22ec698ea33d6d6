"""Every command of the pages: the program knows its words, and a test runs it or a reason says why none does."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest
import typer
from field_layouts import people
from pages import blocks, commands, execute, play

import coalface
from coalface.cli import main
from coalface.core.errors import RecipeError
from coalface.experiments.recipe import included, loader
from coalface.experiments.sweep.differences import bases_of
from coalface.experiments.sweep.grid import grid
from coalface.methods import METHODS

ROOT = Path(coalface.__file__).parents[1]
PAGES = {
    str(path.relative_to(ROOT)).removeprefix("docs/"): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if not path.match("results/*/*.md")
}
LANGUAGES = {"sh", "python", "yaml", "toml", "text", "py"}
"""`py` is a fragment, which does not run by itself."""
RUN = ("tutorial.md", "methods/joint.md", "methods/personal.md", "synthetic.md")
ELSEWHERE = {
    "README.md": "test_wheel.py",
    "bring-your-own.md": "test_bring_your_own.py",
    "flower.md": "flower/test_launcher.py",
    "index.md": "experiments/test_demo.py",
    "python.md": "experiments/test_python_page.py",
    "spec/recipes-and-runs.md": "experiments/test_experiment.py",
    "secure-sums.md": "privacy/test_secure_sums_page.py",
    "trust.md": "experiments/test_poisoning.py",
    "tutorials/photos.md": "test_photos_page.py",
    "use.md": "experiments/test_gallery.py",
    "writing-a-method.md": "experiments/test_check_method.py",
}
"""Page -> the test that runs its commands and its Python, or the same with other numbers."""
LEFT_OUT = {
    "CONTRIBUTING.md": "the checks themselves",
    "deployment.md": "a container engine",
    "figures.md": "RFW, IJB-C and MegaFace, which are not free to pass on",
    "formats.md": "RFW, and landmarks of the reader's own",
    "photographs.md": "photographs of people",
    "methods/pfm.md": "hours, on real faces",
    "methods/across-clients.md": "minutes: a pre-training and three runs",
    "methods/uda.md": "many minutes: a pre-training of 3,000 steps",
    "models.md": "insightface's code",
    "privacy.md": "many minutes: two pre-trainings, and a thousand devices",
    "robust-means.md": "twenty-two minutes; its own rule needs a file",
    "results/": "hours, most of them on real faces",
}
"""Page, or folder of pages -> what its commands need."""
FILES = ("teacher=", "pretrain.methods.distill.teacher=", "model.weights=")
"""Changes that name a file which only the reader has."""
SHORTER = {"run": ["rounds=1"], "up": ["--run-config", "rounds=1", "--yes"]}
"""Command -> what makes it one of seconds."""
PROGRAM = typer.main.get_command(main.app)
for option in PROGRAM.params:
    if "completion" in str(option.name):
        option.callback = None  # parsing must not write to the shell's own files
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
TARGETS = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


def parse(words: list[str]) -> click.Context:
    """The command of `coalface …` with its arguments. Raises click.UsageError."""
    command, name, context, rest = PROGRAM, "coalface", None, words[1:]
    while True:
        context = command.make_context(name, list(rest), parent=context)
        if not isinstance(command, click.Group) or not (rest := [*context._protected_args, *context.args]):
            return context
        name, command, rest = command.resolve_command(context, rest)


def check(words: list[str]) -> None:
    """Raise where the program would refuse the words."""
    try:
        context = parse(words)
    except click.exceptions.Exit:  # --version, --help
        return
    given = context.params
    name = str(given.get("name") or given.get("method") or "METHOD")
    if context.info_name in ("methods", "messages") and not name.isupper():
        METHODS.find(name, "method")
    if context.info_name not in ("run", "sweep"):
        return
    try:
        included.locate(given["recipe"])
    except RecipeError:  # a file of the reader's
        return
    changes = [change for change in given["changes"] or () if not change.startswith(FILES)]
    if context.info_name == "run":
        loader.load(given["recipe"], changes)
    else:
        settings = [cell.setting for cell in grid(given["recipe"], changes)]
        for baseline in given["baseline"] or ():
            bases_of(settings, baseline)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_gives_commands_that_the_program_knows(page: str) -> None:
    assert {language for language, _ in blocks(PAGES[page])} <= LANGUAGES
    for language, text in blocks(PAGES[page]):
        for words in commands(text) if language == "sh" else []:
            first, *rest = words
            if first == "coalface" and "damped:Damped" not in " ".join(rest):
                check(words)
            elif first == "make":
                assert set(rest) <= set(TARGETS)
            elif first == "pip":
                extras = re.findall(r"coalface\[(.+)\]", rest[-1])
                assert {extra for names in extras for extra in names.split(",")} <= EXTRAS.keys()
            elif first.endswith("python"):
                files = [word for word in rest if word.startswith(("tests/", "benchmarks/"))]
                assert all((ROOT / file).is_file() for file in files)
                if files and rest[0] == files[0]:
                    source = (ROOT / files[0]).read_text(encoding="utf-8")
                    assert not [word for word in rest if word.startswith("--") and f'"{word}"' not in source]


@pytest.mark.parametrize("page", PAGES)
def test_a_sentence_names_commands_that_the_program_knows(page: str) -> None:
    sentences = re.sub(r"^```.*?^```$", "", PAGES[page], flags=re.MULTILINE | re.DOTALL)
    for command in re.findall(r"`(coalface [^`]+)`", sentences):
        try:
            if "…" not in command:
                check(shlex.split(command))
        except (
            click.MissingParameter,
            click.BadOptionUsage,
            click.exceptions.NoArgsIsHelpError,
            click.exceptions.Exit,
        ):
            pass  # the name of a command or an option alone


def test_what_a_page_shows_runs_or_is_left_out_for_a_reason() -> None:
    shows = {page for page, text in PAGES.items() if {language for language, _ in blocks(text)} & {"sh", "python"}}
    folders = {page for page in shows if page.startswith("results/")}
    assert shows - folders == {*RUN, *ELSEWHERE, *LEFT_OUT} - {"results/"} and folders
    for page, test in ELSEWHERE.items():
        assert (ROOT / "tests" / test).is_file(), page


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("page", RUN)
def test_a_page_runs_from_top_to_bottom(page: str, tmp_path: Path) -> None:
    people(tmp_path / "IMAGES", [f"person {number}" for number in range(4)], 3)
    try:
        play(PAGES[page], tmp_path, lambda words: SHORTER.get(words[1], []))
    finally:
        if (tmp_path / "kits").exists():
            execute(tmp_path, "coalface", "down", "kits")
