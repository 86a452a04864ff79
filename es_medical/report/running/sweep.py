"""Run compressed sensing at every compression level, as child runs of one MLflow run, which gets the figure."""

from collections.abc import Sequence

from es_medical.report.figures import levels_figure, png
from es_medical.report.groups import group_runs
from es_medical.report.levels import gather
from es_medical.report.reading.runs import read_runs
from es_medical.report.running.plan import Planned
from es_medical.report.running.reproduce import Reproduction, parent_of, reproduce
from es_medical.report.tables import Context
from es_medical.tracking.server import connect


def sweep(todo: Sequence[Planned], how: Reproduction) -> bool:
    """Make the missing runs, draw PSNR against the level, and log the figure to the parent run.

    Returns:
        Whether all runs are there.
    """
    complete = reproduce(todo, how)
    experiment = how.experiment(todo[0])
    found = read_runs(how.uri, [experiment], how.scale)
    for levels in gather(group_runs(found.runs), Context(how.uri, how.bundles)):
        path = how.work / how.scale / "levels.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(levels_figure(levels)))
        connect(how.uri).log_artifact(parent_of(experiment, how), str(path))
        for method, scores in levels.points.items():
            shown = ", ".join(f"{100 * (1 - ratio):g} %: {one.mean:.2f} dB" for ratio, one in sorted(scores.items()))
            how.console.print(f"{method}: {shown}", soft_wrap=True, markup=False, highlight=False)
        where = f"figure: {path}, and in the run {experiment} of MLflow: mlflow ui --backend-store-uri {how.uri}"
        how.console.print(where, soft_wrap=True, markup=False, highlight=False)
    return complete
