"""Figures: what is drawn, on which axes, with which scale."""

import numpy as np
import pytest
from report_store import case_arrays, case_picture, items

from es_medical.methods import METHODS
from es_medical.report.figures import ablation_figure, curves_figure, levels_figure, png
from es_medical.report.gallery import gallery
from es_medical.report.levels import gather, levels_grid
from es_medical.report.paper import LEVELS, RATIOS
from es_medical.report.reading.cases import pictures
from es_medical.report.reading.store import ReportError
from es_medical.report.tables import Context, ablation_table


def sensing(store, method, ratio, psnr, digest=None, **more):
    operator = {"ratio": str(ratio), "sigma": "0.0"}
    digest = digest or f"{int(100 * ratio):02d}" * 32
    store.log(method, items(psnr, n=4), experiment="mnist_cs_demo", bundle="mnist_cs", operator=operator, digest=digest, **more)


def test_curves_are_drawn_against_epochs_and_against_minutes_of_training(store):
    store.log("es", items(28), curve=((0, 0.0, 20.0), (1, 60.0, 25.0), (2, 120.0, 28.0)))
    first, second, third = (axes.lines[0] for axes in curves_figure(store.group()).axes)
    assert third.get_xdata() == pytest.approx([0.0, 1.0, 3.0])
    assert third.get_ydata() == pytest.approx([0.4, 0.5, 0.56])
    assert first.get_xdata() == pytest.approx([0, 1, 2])
    assert second.get_xdata() == pytest.approx([0.0, 1.0, 3.0])
    assert first.get_ydata() == pytest.approx([20, 25, 28])


def test_every_trained_method_has_a_line_of_its_own_and_the_best_that_learns_nothing(store):
    store.log("es", items(25), curve=())
    assert curves_figure(store.group()) is None
    for method in METHODS:
        store.log(method, items(25), curve=((1, 1.0, 24.0), (2, 1.0, 27.0 if method == "tv" else 26.0), (3, 1.0, 25.0)))
    labels = {one.label for one in METHODS.values()}
    lines = [line for line in curves_figure(store.group()).axes[0].lines if line.get_label() in labels]
    assert {line.get_label() for line in lines} == {one.label for name, one in METHODS.items() if one.trained or name == "tv"}
    assert [set(line.get_ydata()) for line in lines if line.get_label() == METHODS["tv"].label] == [{27.0}]
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == len(lines)


def test_levels_gather_one_point_of_each_ratio_beside_the_papers(store):
    for ratio, psnr in ((0.1, 24.0), (0.5, 40.0)):
        sensing(store, "es", ratio, psnr)
    (levels,) = gather(store.groups(), store.context)
    assert {ratio: score.mean for ratio, score in levels.points["es"].items()} == pytest.approx({0.1: 24.0, 0.5: 40.0})
    (axes,) = levels_figure(levels).axes
    assert axes.get_xlim()[0] < axes.get_xlim()[1]  # the level grows to the right, as in the paper's figure
    assert sorted(round(tick) for tick in axes.get_xticks()) == [50, 60, 70, 80, 90]
    lines = {line.get_label(): line for line in axes.lines}
    drawn = dict(zip(lines["ES, paper"].get_xdata(), lines["ES, paper"].get_ydata(), strict=True))
    assert drawn[90.0] == LEVELS["es"][RATIOS.index(0.1)]


def test_levels_are_listed_beside_the_papers_and_missing_points_have_commands_that_make_their_data_first(store):
    sensing(store, "es", 0.3, 30.0)
    (levels,) = gather(store.groups(), store.context)
    grid = levels_grid(levels)
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in grid.rows}
    assert rows["ES, paper"] == ["25.68", "30.91", "34.57", "38.19", "41.76"]
    assert rows["ES, ours"] == ["", "", "30.00 ± 0.43", "", ""]
    commands = {name: command for command, (name,) in grid.commands.items()}
    assert commands == levels.commands
    assert len(commands) == 14
    assert commands["EI, 70 %"].startswith("python -m monai.bundle run")
    data, _, run = commands["ES, 90 %"].partition(" && ")
    assert data == "python -m data_prep demo digits demo_digits_ratio0.1.h5 --ratio 0.1"
    assert run.startswith("python -m monai.bundle run")
    assert "--ratio 0.1" in run
    assert "--data_file demo_digits_ratio0.1.h5" in run


def test_two_data_sets_of_one_level_are_noted_and_not_averaged(store):
    sensing(store, "es", 0.3, 30.0, digest="aa" * 32)
    sensing(store, "es", 0.3, 20.0, digest="bb" * 32)
    (levels,) = gather(store.groups(), store.context)
    assert levels.points["es"][0.3].mean == pytest.approx(20.0)
    assert any("2 data sets" in note and "bbbbbbbb" in note for note in levels.notes)


def test_the_ablation_draws_complete_pairs_only(store):
    store.log("es", items(28))
    group = store.group()
    assert ablation_figure(ablation_table(group, Context())) is None
    store.log("splitting", items(27))
    group = store.group()
    figure = ablation_figure(ablation_table(group, Context()))
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["Splitting"]


def test_error_maps_of_all_methods_have_one_scale_which_their_errors_set(store):
    target = np.linspace(0, 1, 256, dtype=np.float32).reshape(1, 16, 16)
    for method, error, ids in (("es", 0.1, ("a", "b")), ("ei", 0.3, ("b", "c"))):
        store.log(method, items(28), files={"test/cases.npz": case_arrays(target + error, target, ids)})
    figures = gallery(store.group())
    assert len(figures) == 1  # of the item that all methods have
    images = [axes.images[0] for axes in figures[0].axes if axes.images]
    errors = [image for image in images if image.get_cmap().name == "inferno"]
    assert len(errors) == 3  # input, ES, EI
    assert len({image.get_clim() for image in errors}) == 1
    assert errors[0].get_clim() == pytest.approx((0.0, 0.3), abs=1e-6)
    assert np.asarray(errors[1].get_array()) == pytest.approx(np.full((16, 16), 0.1), abs=1e-6)
    titles = [axes.get_title().partition("\n")[0] for axes in figures[0].axes]
    assert [title for title in titles if title] == ["Input", "ES", "EI", "Target"]


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_real_complex_and_rgb_images_are_drawn(store, channels):
    target = np.random.default_rng(0).random((channels, 12, 12), dtype=np.float32)
    store.log("es", items(28), files={"test/cases.npz": case_arrays(0.9 * target, target)})
    assert png(gallery(store.group())[0]).startswith(b"\x89PNG")


def test_without_arrays_the_newest_logged_pictures_are_shown_one_below_the_other(store):
    store.log("es", items(28), files=case_picture(10, time=5) | case_picture(200, time=9))
    store.log("ei", items(28), files=case_picture(60))
    group = store.group()
    (figure,) = gallery(group)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["ES, case0", "EI, case0"]
    assert [int(np.asarray(axes.images[0].get_array()).max()) for axes in figure.axes] == [200, 60]
    assert list(pictures(group.runs["es"][0])) == ["case0"]


def test_arrays_of_another_layout_are_an_error_that_names_the_run(store):
    store.log("es", items(28), files={"test/cases.npz": b"no archive"})
    with pytest.raises(ReportError, match=r"test/cases.npz of run es-seed0 cannot be read"):
        gallery(store.group())
