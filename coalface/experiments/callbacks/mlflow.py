"""Runs in MLflow: settings as parameters, the values of each round and the figures as metrics."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping

from coalface.experiments.callbacks.tracker import Tracker
from coalface.experiments.report.runs import flatten

ROUND = "round"
"""The metric that holds the last round sent."""
METRICS_A_REQUEST = 1000
PARAMS_A_REQUEST = 100


class MLflow(Tracker):
    """Sends a run to MLflow: to the server or store `uri`, else to that which MLflow is set to use.

    Each is a run of `experiment`, else of `MLFLOW_EXPERIMENT_NAME`, else of `coalface`. A resume continues it, and
    sends no round twice. Unless `MLFLOW_DISABLE_TELEMETRY` says otherwise, MLflow reports no usage to its makers.
    """

    name = "mlflow"
    module = "mlflow"

    def __init__(self, experiment: str | None = None, uri: str | None = None) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        super().__init__()
        self._experiment, self._uri = experiment, uri

    def open(self, name: str) -> int:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient(self._uri)
        if run_id := self.known_id():
            self._run = run_id
            self._client.update_run(run_id, status="RUNNING")
            return int(self._client.get_run(run_id).data.metrics.get(ROUND, 0))
        title = self._experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "coalface"
        experiment = self._client.get_experiment_by_name(title)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(title)
        self._run = self._client.create_run(experiment_id, run_name=name).info.run_id
        self.keep_id(self._run)
        params = [Param(_key(key), value) for key, value in flatten(self.recipe.resolved()).items()]
        for first in range(0, len(params), PARAMS_A_REQUEST):
            self._client.log_batch(self._run, params=params[first : first + PARAMS_A_REQUEST])
        return 0

    def log(self, step: int, values: Mapping[str, float], when: float) -> None:
        from mlflow.entities import Metric

        # `round` comes last: a round of which a kill has cut off a part is sent again
        metrics = [Metric(_key(k), v, int(1000 * when), step) for k, v in {**values, ROUND: float(step)}.items()]
        for first in range(0, len(metrics), METRICS_A_REQUEST):
            self._client.log_batch(self._run, metrics=metrics[first : first + METRICS_A_REQUEST])

    def conclude(self, step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            if step not in [metric.step for metric in self._client.get_metric_history(self._run, _key(name))]:
                self._client.log_metric(self._run, _key(name), value, int(1000 * time.time()), step)

    def close(self, finished: bool) -> None:
        self._client.set_terminated(self._run, "FINISHED" if finished else "KILLED")


def _key(name: str) -> str:
    """A name with the characters that MLflow takes."""
    return re.sub(r"[^\w\-./ ]", "_", name)
