"""Sweeps: a grid of recipes into one table, resumable from one small text file.

`OUT/cells.jsonl` has a line for every finished cell: the hash of its resolved recipe, what was swept, the figures, the
evidence for paired comparisons, and digests of the code that ran it. That file alone says what is done (above 1 MB it
becomes `cells.jsonl.gz` when the sweep ends); a cell whose hash has changed is run again, and one whose code has
changed is named.
A cell that fails does not stop the others: `OUT/failed.json` has its reason, and the next sweep tries it again, last.
A disk that takes nothing more stops the sweep.
"""

from __future__ import annotations

import contextlib
import functools
import json
import shlex
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from coalface.core.disk import explained, refusal, write_json, write_text
from coalface.core.errors import DataError, RecipeError
from coalface.core.names import made_plain
from coalface.core.parsing import read_json
from coalface.core.text import clean, several
from coalface.engine.transport import RunFailed
from coalface.evaluation.verification import read_lists
from coalface.experiments import provenance
from coalface.experiments import run as experiment
from coalface.experiments.callbacks.base import Callback
from coalface.experiments.plan import preflight
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.setup import sources
from coalface.experiments.setup.parts import Parts
from coalface.experiments.sweep import page
from coalface.experiments.sweep.cells import append_cell, pack_cells, packed, read_cells
from coalface.experiments.sweep.differences import baseline_of, bases_of, check_figure, figure
from coalface.experiments.sweep.grid import Cell, grid
from coalface.experiments.sweep.jobs import Job, run_jobs
from coalface.experiments.sweep.table import table

KEPT = ("enrolled", "clusters", "personalised", "public_images", "own_figures", "trained")
"""What a cell keeps of its run's summary, if it has it."""


def sweep(
    path: Path,
    changes: Sequence[str],
    out: Path,
    callback: Callback,
    *,
    baselines: Sequence[str] = (),
    axes: Sequence[str] = (),
    drawn: str | None = None,
    keep_runs: bool = False,
    jobs: int = 1,
) -> str:
    """Run the cells that are not done yet, then write and return the table (`OUT/table.md`), with its page beside it.

    With `jobs` above 1, so many run at a time, each in a process of its own; their results do not depend on it.

    The page (`OUT/sweep.html`) draws the figures over `axes`, else over every key that takes three numbers or more.
    `drawn`: a figure as `LIST/FIGURE` whose differences to the first baseline are drawn too (`OUT/figure.svg`).
    Raises RunFailed, with the table of what is done, where cells have failed, and OSError where a disk is full.
    """
    cells = _cells(path, changes, baselines)
    over = page.axes_of(cells, axes)
    if drawn:
        check_figure(cells, drawn)
    out.mkdir(parents=True, exist_ok=True)
    cells_file = out / "cells.jsonl"
    finished, failed = read_cells(cells_file), _read_failed(out)
    if changed := {cell.name or cell.setting: modules for cell in cells if (modules := _changed_code(cell, finished))}:
        names = ", ".join(sorted({name for modules in changed.values() for name in modules}))
        unpack = f"`gunzip {shlex.quote(str(packed(cells_file)))}`, and " if packed(cells_file).exists() else ""
        callback.note(
            f"the code of methods ({names}) is another now than that which ran these cells: {'; '.join(changed)}. They "
            f"are left as they are: {unpack}delete their lines in {cells_file}, and they are run again"
        )
    numbered = enumerate(cells, start=1)
    in_order = sorted(numbered, key=lambda item: item[1].digest in failed)  # a stable sort
    to_run = {number: cell for number, cell in in_order if cell.digest not in finished}

    def begins(number: int) -> None:
        callback.note(f"cell {number} of {len(cells)}: {to_run[number].name}")

    quietly = callback if jobs == 1 else Callback()
    work = {
        number: functools.partial(_run, cell, out / "runs" / cell.digest, quietly, keep_runs)
        for number, cell in to_run.items()
    }
    with contextlib.closing(run_jobs(work, jobs, begins) if jobs > 1 else _in_turn(work, begins)) as results:
        for number, result in results:
            digest = to_run[number].digest
            if isinstance(result, Exception):
                if (refused := refusal(result)) is not None:  # no other cell would get further
                    raise refused from None
                if not isinstance(result, RuntimeError | OSError | ValueError):
                    raise result
                failed[digest] = clean(explained(result) if isinstance(result, OSError) else result)
                callback.note(f"cell {number} of {len(cells)} failed: {failed[digest]}")
                write_json(out / "failed.json", failed)
                continue
            if jobs > 1:
                callback.note(f"cell {number} of {len(cells)} is done")
            finished[digest] = result
            append_cell(cells_file, result)
            if failed.pop(digest, None) is not None:
                write_json(out / "failed.json", failed)
            if not keep_runs:
                shutil.rmtree(out / "runs" / digest)
    pack_cells(cells_file)
    text, whole, apart = table(cells, finished, baselines, failed)
    kept_files = {name: not whole and (out / name).exists() for name in ("table.md", "sweep.html")}
    if not kept_files["table.md"]:
        write_text(out / "table.md", text)
    if not kept_files["sweep.html"]:
        command = page.command_of(path, changes, out, baselines, axes, drawn, keep_runs)
        write_text(out / "sweep.html", page.page(cells, finished, text, command, over, (*baselines, None)[0]))
    if drawn and apart:
        base_of = bases_of(list(dict.fromkeys(cell.setting for cell in cells)), (*baselines, None)[0])
        figure(cells, apart, base_of, drawn).save(out / "figure.svg")
    printout = f"{text}\ncells: {cells_file if cells_file.exists() else packed(cells_file)}"
    for kind, name in (("table", "table.md"), ("page", "sweep.html")):
        printout += f"\n{kind}: {out / name}{' (left as it was)' if kept_files[name] else ''}"
    if missing := sum(cell.digest not in finished for cell in cells):
        raise RunFailed(f"{missing} of {len(cells)} cells failed; the same command tries them again\n\n{printout}")
    return printout


def plan(path: Path, changes: Sequence[str], out: Path, *, baselines: Sequence[str] = ()) -> list[dict[str, Any]]:
    """What a sweep would do with each cell; those that are not done are checked as a run is before it begins.

    Nothing is written, and no image is decoded. Raises RecipeError, ValueError or OSError as the sweep would.
    """
    cells = _cells(path, changes, baselines)
    finished, failed, planned = read_cells(out / "cells.jsonl", mend=False), _read_failed(out), []
    for number, cell in enumerate(cells, start=1):
        digest = cell.digest
        row: dict[str, Any] = {"cell": cell.name, "digest": digest}
        if digest in finished:
            seconds, changed = finished[digest]["seconds"]["total"], _changed_code(cell, finished)
            planned.append(row | {"state": "done", "seconds": seconds, "changed_code": changed})
            continue
        try:
            parties = len(preflight.check(cell.recipe))
        except ValueError as error:
            raise RecipeError(str(error), where=f"cell {number} of {len(cells)}: {cell.name}") from None
        was_started = (out / "runs" / digest / "config.yaml").exists()
        state = f"failed before ({failed[digest]})" if digest in failed else "begun" if was_started else "to run"
        planned.append(row | {"state": state, "rounds": cell.recipe.rounds, "parties": parties})
    return planned


def plan_text(planned: Sequence[Mapping[str, Any]], out: Path) -> str:
    """What a sweep would do, a line for every cell."""
    lines, ran = [], [row["seconds"] for row in planned if row["state"] == "done"]
    for number, row in enumerate(planned, start=1):
        if row["state"] == "done":
            by = ", by other code than is here now" if row["changed_code"] else ""
            state = f"done, {row['seconds']:.0f} s{by}"
        else:
            length = several(row["rounds"], "round")
            state = f"{row['state']}; {length} over {several(row['parties'], 'party', 'parties')}"
        lines.append(f"cell {number} of {len(planned)}: {row['cell'] or 'the recipe'}: {state}")
    took = f"; a cell that is done took {sum(ran) / len(ran):.0f} s in the mean" if ran else ""
    return "\n".join(
        [*lines, f"{len(planned) - len(ran)} of {len(planned)} cells are left to run{took}; they go to {out}"]
    )


def _cells(path: Path, changes: Sequence[str], baselines: Sequence[str]) -> list[Cell]:
    """The cells of a sweep. Raises RecipeError for a mistake that should not show after hours."""
    cells = grid(path, changes)
    for baseline in baselines:
        baseline_of([cell.setting for cell in cells], baseline)
    for cell in cells:
        if keys := Parts(cell.recipe, sources.unseen).left_open:
            raise RecipeError(
                "each cell would choose for itself, and cells are compared; write a value, such as `coalface run` of "
                "one cell chooses",
                where=", ".join(f"engine.{key}" for key in keys),
            )
    return cells


def _in_turn(work: Mapping[int, Job], begins: Callable[[int], None]) -> Generator[tuple[int, Any], None, None]:
    """What `run_jobs` gives, one cell after another in this process."""
    for number, run in work.items():
        begins(number)
        try:
            yield number, run()
        except Exception as error:
            yield number, error


def _run(cell: Cell, place: Path, callback: Callback, keep_runs: bool) -> dict[str, Any]:
    """Run a cell, or go on with it, and return its line."""
    if (place / "config.yaml").exists():
        experiment.resume(place, callback)
    else:
        recipe = cell.recipe.model_copy(update={"name": made_plain(f"{cell.recipe.name} {cell.name}".rstrip())})
        experiment.run(recipe, place, callback, report=keep_runs)
    return _line(cell, place)


def _changed_code(cell: Cell, finished: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The modules by which a finished cell ran that are not as they were; of a version that kept none, none."""
    ran = finished.get(cell.digest, {}).get("code")
    return provenance.changed_code(ran, provenance.code_behind(cell.recipe)) if ran else []


def _read_failed(out: Path) -> dict[str, str]:
    """The reason of each cell that has failed and was not done since, by the hash of its recipe.

    Of a damaged file, none: the cells are run again all the same.
    """
    with contextlib.suppress(FileNotFoundError, DataError):
        return read_json(out / "failed.json", "delete it")
    return {}


def _line(cell: Cell, place: Path) -> dict[str, Any]:
    summary = json.loads((place / "summary.json").read_text(encoding="utf-8"))
    keys = ("method", "seed", "rounds", "bytes", "seconds", "figures", "untrained")
    lists = {name: identities.sha256 for name, identities in read_lists(place / "judged")}
    records = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    losses = [record.get("loss") for record in records]
    evidence = json.loads((place / "evidence.json").read_text(encoding="utf-8"))
    line = {"hash": cell.digest, "cell": cell.chosen, **{k: summary[k] for k in keys}}
    line |= {"last_loss": losses[-1] if losses else None, "losses": _smoothed(records, cell.recipe)}
    line |= {key: summary[key] for key in KEPT if key in summary}
    if "mean" in (embeddings := summary.get("class_embeddings", {})):
        kept = ("count", "mean", "percentiles")
        line["class_embeddings"] = {key: value for key, value in embeddings.items() if key in kept}
    code = dict(provenance.begun_with(place).code)
    return {**line, "lists": lists, "evidence": evidence, "code": code}


def _smoothed(records: Sequence[Mapping[str, Any]], recipe: Recipe) -> dict[str, float]:
    """Each party's final training loss: L ← 0.99^K L + (1 − 0.99^K) l over the rounds, l a round's mean over K steps.

    So rounds of every length are smoothed as one step by 0.99 would be (Bai et al. 2021, Table 1). With `privacy.dp`
    there are none: cells are published, and no noise is on the loss of a single party.
    """
    if recipe.dp is not None:
        return {}
    keep = 0.99 ** (recipe.local.steps_per_round or 100)
    smoothed: dict[str, float] = {}
    for record in records:
        for party, loss in record.get("losses", {}).items():
            smoothed[party] = keep * smoothed.get(party, loss) + (1 - keep) * loss
    return smoothed
