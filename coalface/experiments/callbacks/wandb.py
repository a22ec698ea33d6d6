"""Runs in Weights & Biases: settings as the config, the values of each round as the history, figures as the summary."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Mapping
from typing import Any, Literal

from coalface.experiments.callbacks.tracker import Tracker


class WandB(Tracker):
    """Sends a run to Weights & Biases.

    `mode`, else `WANDB_MODE`, is `offline` unless it is given: the run is then kept in `wandb/` in the run's folder,
    which `wandb sync` uploads. A resume continues the run: offline it is written anew, online it sends no round twice.
    Console output, source code and measures of the machine are not recorded.
    """

    name = "wandb"
    module = "wandb"

    def __init__(self, project: str | None = None, mode: Literal["online", "offline"] | None = None) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        super().__init__()
        self._project = project or os.environ.get("WANDB_PROJECT") or "coalface"
        self._mode: Any = mode or os.environ.get("WANDB_MODE") or "offline"

    def open(self, name: str) -> int:
        import wandb

        run_id = self.known_id() or uuid.uuid4().hex[:12]
        self.keep_id(run_id)
        if self._mode == "offline":
            for stale in (self.out / "wandb").glob(f"offline-run-*-{run_id}"):
                shutil.rmtree(stale)
        self._run = wandb.init(
            project=self._project,
            id=run_id,
            name=name,
            dir=self.out,
            mode=self._mode,
            resume="allow" if self._mode == "online" else None,
            reinit="create_new",
            settings=wandb.Settings(
                console="off", silent=True, save_code=False, disable_git=True, x_disable_stats=True
            ),
        )
        self._run.config.update(self.recipe.resolved(), allow_val_change=True)
        return max(0, self._run.starting_step - 1)

    def log(self, step: int, values: Mapping[str, float], when: float) -> None:
        self._run.log(dict(values), step=step)

    def conclude(self, step: int, figures: Mapping[str, float]) -> None:
        self._run.summary.update(dict(figures))

    def close(self, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)
