"""Make the whole report as one record, before it is written in any format."""

from collections.abc import Sequence
from typing import NamedTuple

from es_medical.report.catalogue import STUDIES
from es_medical.report.commands import planned_command
from es_medical.report.figures import ablation_figure, curves_figure, levels_figure, png
from es_medical.report.gallery import gallery
from es_medical.report.grids import Grid, difference_grid, race_grid, table_grid
from es_medical.report.groups import Group, group_runs
from es_medical.report.levels import Levels, gather, levels_grid
from es_medical.report.reading.runs import Found
from es_medical.report.reading.store import ReportError
from es_medical.report.reading.timing import Race, race
from es_medical.report.statistics import Difference, differences
from es_medical.report.tables import Context, Table, ablation_table, absent_tables, method_table, noise_table, safe, slug


class Picture(NamedTuple):
    """A figure: name of its file, caption, PNG."""

    name: str
    caption: str
    content: bytes


class Section(NamedTuple):
    """One experiment: tables as text, and pictures; tables next to the paper's, differences and times as numbers."""

    title: str
    grids: tuple[Grid, ...]
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()
    differences: tuple[Difference, ...] = ()
    race: Race | None = None
    slug: str = ""


class Report(NamedTuple):
    """All sections in the paper's order; remarks on the runs that were left out."""

    sections: tuple[Section, ...]
    remarks: tuple[str, ...]


def make_report(found: Found, context: Context, scale: str | None = None, everything: bool = True) -> Report:
    """Make the tables and figures of runs.

    Args:
        found: the runs.
        context: context of the commands of missing runs.
        scale: scale of the commands of experiments without any run; None takes demo.
        everything: also list experiments of the paper without any run.

    Raises:
        ReportError: there are no runs; the message has the commands to begin with.
    """
    if not found.runs:
        raise ReportError(_nothing(found, context, scale or "demo"))
    groups = group_runs(found.runs)
    sections = [_section(group, groups, context) for group in groups]
    sections += [_levels_section(levels) for levels in gather(groups, context)]
    absent = absent_tables(groups, scale or "demo", context) if everything else []
    sections += [Section(f"{table.title}: no runs", (table_grid(table),), tables=(table,)) for table in absent]
    return Report(tuple(sections), found.remarks)


def _levels_section(levels: Levels) -> Section:
    name = safe(f"levels-{levels.experiment}-{levels.scale}")
    caption = "PSNR against the compression level; bars are standard deviations over test items"
    picture = Picture(name, caption, png(levels_figure(levels)))
    title = f"Compression levels ({levels.experiment}, scale {levels.scale})"
    return Section(title, (levels_grid(levels),), (picture,))


def _section(group: Group, groups: Sequence[Group], context: Context) -> Section:
    table = method_table(group, context)
    ablation, noise = ablation_table(group, context), noise_table(group, groups, context)
    compared, raced = differences(group), race(group.runs)
    tables = tuple(one for one in (table, ablation, noise) if one)
    grids = (*map(table_grid, tables), difference_grid(compared), race_grid(raced))
    named = (group.key.experiment, group.key.study, f"data {group.key.digest[:8]}" if group.key.digest else "data not logged")
    return Section(
        f"{table.title} ({', '.join(part for part in named if part)})",
        tuple(one for one in grids if one),
        tuple(_pictures(group, ablation)),
        tables,
        tuple(compared),
        raced,
        slug(group),
    )


def _pictures(group: Group, ablation: Table | None) -> list[Picture]:
    name = slug(group)
    curves = curves_figure(group)
    shown = [Picture(f"{name}-curves", "PSNR against epochs and against training time", png(curves))] if curves else []
    compared = ablation_figure(ablation) if ablation else None
    if compared:
        caption = "Equivariant networks and others; bars are standard deviations over test items"
        shown.append(Picture(f"{name}-ablation", caption, png(compared)))
    for i, figure in enumerate(gallery(group)):
        shown.append(Picture(f"{name}-case{i}", f"Test case {i}: input, methods, target, and errors on one scale", png(figure)))
    return shown


def _nothing(found: Found, context: Context, scale: str) -> str:
    study = STUDIES[0]
    data = study.demo_data if scale == "demo" else study.data
    first = planned_command(study, "es", scale, context.tracking_uri)
    left_out = f" ({'; '.join(found.remarks)})" if found.remarks else ""
    return f"the MLflow store has no finished, tested run of a bundle{left_out}. Begin with:\n  {data}\n  {first}"
