"""The runs of a reproduction of the paper: each method of each experiment, with its data, budget and command."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from es_medical.knobs import NO_RESULT, OF_SPLITS, read_knobs
from es_medical.methods import METHODS, current_name
from es_medical.report.catalogue import STUDIES, Study
from es_medical.report.paper import DURATIONS, RATIOS
from es_medical.report.reading.store import ReportError


class Planned(NamedTuple):
    """One run of a reproduction.

    Attributes:
        study: the experiment.
        method: its method.
        ratio: m / n of compressed sensing, None for the others.
        overlays: configurations after train.yaml.
        knobs: knobs that no configuration sets.
        data: command that makes the data file, "" if the user has to make it.
    """

    study: Study
    method: str
    ratio: float | None
    overlays: tuple[str, ...]
    knobs: Mapping[str, Any]
    data: str

    @property
    def name(self) -> str:
        """A name for folders and messages: inpainting-es, sensing-0.3-es."""
        return "-".join([self.study.key, *([] if self.ratio is None else [f"{self.ratio:g}"]), self.method])

    def command(self, bundles: Path, folder: Path, log: Mapping[str, str]) -> tuple[str, ...]:
        """Return the program and its arguments.

        Args:
            bundles: folder of the bundles.
            folder: folder for the run's weights and unsent MLflow entries; an interrupted training there is resumed.
            log: knobs of the MLflow run (tracking_uri, study, parent_run, ...).
        """
        bundle = bundles / self.study.bundle
        files = [str(bundle / "configs" / f"{name}.yaml") for name in ("train", *self.overlays)]
        places = {"ckpt_dir": str(folder / "models"), "output_dir": str(folder / "eval")}
        resume = {"resume": True} if (folder / "models" / "last.pt").is_file() else {}
        knobs = {"bundle_root": str(bundle), "method": self.method} | places | dict(self.knobs) | dict(log) | resume
        options = [part for name, value in knobs.items() for part in (f"--{name}", str(value))]
        return (sys.executable, "-m", "monai.bundle", "run", "--config_file", str(files), *options)


def plan(scale: str, only: Sequence[str], methods: Sequence[str], bundles: Path, effort: float = 1.0) -> list[Planned]:
    """List the runs of a reproduction.

    At demo scale all methods take about the same time, in so far as network passes are the cost: epochs are those of
    demo.yaml, which are for ES, times its passes of a step over those of the method. They have the same warm start, that of
    demo.yaml, which takes each of them the same time, so that their total times are equal too. At the paper's scale they are
    the paper's, where it states them.

    Args:
        scale: "demo" or "paper".
        only: keys of experiments, or bundles; none for all.
        methods: names; none for those of the paper's tables and those that each study adds.
        bundles: folder of the bundles.
        effort: factor on the epochs.

    Raises:
        ReportError: an unknown experiment or method.
        FileNotFoundError: there is no such folder of bundles.
    """
    methods = [current_name(method) for method in methods]
    known = {study.key for study in STUDIES} | {study.bundle for study in STUDIES}
    for kind, given, valid in (("experiment", only, known), ("method", methods, set(METHODS))):
        if wrong := sorted(set(given) - valid):
            raise ReportError(f"unknown {kind} {', '.join(wrong)}: choose from {', '.join(sorted(valid))}")
    studies = [study for study in STUDIES if not only or {study.key, study.bundle} & set(only)]
    return [one for study in studies for one in _runs(study, scale, methods, bundles, effort)]


def _runs(study: Study, scale: str, methods: Sequence[str], bundles: Path, effort: float) -> Iterator[Planned]:
    wanted = methods or (*study.methods, *study.more)
    for ratio in RATIOS if study.key == "sensing" else (None,):
        for method in wanted:
            if method == "biharmonic" and study.bundle != "div2k_inpainting":
                continue
            yield _run(study, method, ratio, scale, bundles, effort)


def _run(study: Study, method: str, ratio: float | None, scale: str, bundles: Path, effort: float) -> Planned:
    demo = scale == "demo"
    overlays = study.demo_overlays if demo else study.overlays
    settings = read_knobs(bundles / study.bundle / "configs", ("train", *overlays))
    knobs: dict[str, Any] = dict(study.demo_knobs) if demo else {}
    data = study.demo_data if demo else ""
    if ratio is not None:
        file = f"demo_digits_{100 * ratio:g}.h5"
        knobs |= {"ratio": ratio} | ({"data_file": file} if demo else {})
        data = f"python -m data_prep demo digits {file} --ratio {ratio:g}" if demo else ""
    knobs["key_metric"] = "auto"  # the same choice of weights for all methods: PSNR of validation images where there are any
    if METHODS[method].trained:
        knobs |= _budget(study, method, settings, knobs, demo, effort)
    return Planned(study, method, ratio, overlays, knobs, data)


def _budget(
    study: Study, method: str, settings: Mapping[str, Any], knobs: Mapping[str, Any], demo: bool, effort: float
) -> dict[str, Any]:
    """Return the number of epochs, with milestones at the same shares of them, and the validation interval."""
    noisy = (dict(settings) | dict(knobs)).get("sigma") != 0
    paper = {one.method: one.epochs for one in DURATIONS.get(study.key, ())}
    default = int(settings["epochs"])
    splits = int(settings.get("n_splits", 1))
    share = _passes("es", noisy, splits) / _passes(method, noisy, splits)
    epochs = default * share if demo else paper.get(method, default)
    epochs = max(1, round(effort * epochs))
    milestones = [max(1, round(epochs * one / default)) for one in settings["lr_milestones"]]
    interval = max(1, min(int(settings["val_interval"]), epochs // 4))
    return {"epochs": epochs, "lr_milestones": milestones, "val_interval": interval}


def decisive_knobs(run: Planned, bundles: Path) -> dict[str, tuple[Any, Any]]:
    """Return the knobs that decide a run's result, as its overlays set them: name -> (value, that of train.yaml)."""
    configs = bundles / run.study.bundle / "configs"
    default, given = read_knobs(configs, ("train",)), read_knobs(configs, run.overlays) | dict(run.knobs)
    no_result = NO_RESULT if METHODS[run.method].split_input else (*NO_RESULT, *OF_SPLITS)
    plain = (name for name, value in given.items() if name not in no_result and not isinstance(value, dict))
    return {name: (given[name], default.get(name)) for name in plain}


def _passes(method: str, noisy: bool, n_splits: int) -> int:
    """Return the network passes of a training step; only splitting methods take several splits."""
    known = METHODS[method]
    return known.passes[noisy] * (n_splits if known.split_input else 1)
