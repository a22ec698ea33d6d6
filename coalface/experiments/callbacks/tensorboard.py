"""TensorBoard's events of a run, in its folder; they are written anew when a run is resumed."""

from __future__ import annotations

import time
from collections.abc import Mapping

from coalface.core.disk import writing
from coalface.evaluation.figures import figure_name, figure_of
from coalface.experiments.callbacks.tracker import EVALUATED, Tracker

FOLDER = "tensorboard"
"""In the run's folder; `tensorboard --logdir` takes it, or a folder of runs."""


class TensorBoard(Tracker):
    """Writes a run's rounds and figures into its folder `tensorboard/`."""

    name = "tensorboard"
    module = "tensorboard.summary.writer.record_writer"

    def open(self, name: str) -> int:
        folder = self.out / FOLDER
        folder.mkdir(exist_ok=True)
        for stale in folder.glob("*tfevents*"):
            stale.unlink()
        self._file = folder / f"events.out.tfevents.{int(time.time())}.coalface"
        self._write(time.time(), None, {})
        return 0

    def log(self, step: int, values: Mapping[str, float], when: float) -> None:
        self._write(when, step, values)

    def conclude(self, step: int, figures: Mapping[str, float]) -> None:
        self._write(time.time(), step, figures)

    def _write(self, when: float, step: int | None, values: Mapping[str, float]) -> None:
        """Append an event; that without a step begins the file."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.summary.writer.record_writer import RecordWriter

        def metadata(tag: str) -> SummaryMetadata | None:
            """What TensorBoard writes over the drawing of a figure, and beside it."""
            if not tag.startswith(EVALUATED):
                return None
            key = tag.removeprefix(EVALUATED)
            figure = figure_of(key)
            better = f"; {figure.better} is better" if figure.better else ""
            return SummaryMetadata(
                display_name=figure_name(key),
                summary_description=f"in {figure.unit.name}{better}",
                plugin_data=SummaryMetadata.PluginData(plugin_name="scalars"),
            )

        if step is None:
            event = Event(wall_time=when, file_version="brain.Event:2")
        else:
            scalars = [Summary.Value(tag=t, simple_value=value, metadata=metadata(t)) for t, value in values.items()]
            event = Event(wall_time=when, step=step, summary=Summary(value=scalars))
        with writing(self._file), open(self._file, "ab") as file:
            RecordWriter(file).write(event.SerializeToString())
