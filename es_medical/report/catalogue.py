"""The paper's experiments as our bundles run them: which bundle and overlays, which methods, which data, at either scale."""

from collections.abc import Mapping
from typing import NamedTuple

from es_medical.knobs import number
from es_medical.report.paper import ABLATIONS, TABLES, UNKNOWN_NOISE, PaperTable, sensing_table

NOISY = 0.05
"""Noise level from which MRI counts as the paper's noise-dominated setting; the paper has 0.005 and 0.1."""


class Study(NamedTuple):
    """One experiment of the paper.

    Attributes:
        key: key of the paper's table (`es_medical.report.paper`).
        bundle: bundle that runs it.
        overlays: configurations after train.yaml, at the paper's scale.
        demo_overlays: configurations after train.yaml, at demo scale.
        demo_knobs: knobs at demo scale that no overlay sets.
        data: command that makes the paper's data; SRC is the downloaded archive.
        demo_data: command that makes the demo's data.
        methods: rows of the paper's table that are trained.
        more: methods that `reproduce` runs in addition.
        mask: kind of mask that distinguishes studies of one bundle; "" for any.
        noisy: likewise, whether the noise level is at least `NOISY`; None for any.
    """

    key: str
    bundle: str
    overlays: tuple[str, ...]
    demo_overlays: tuple[str, ...]
    demo_knobs: tuple[tuple[str, str], ...]
    data: str
    demo_data: str
    methods: tuple[str, ...]
    more: tuple[str, ...]
    mask: str = ""
    noisy: bool | None = None

    def holds(self, bundle: str, operator: Mapping[str, str]) -> bool:
        """Whether runs of a bundle with these operator knobs belong to this study."""
        sigma = number(operator.get("sigma"))
        noise_fits = self.noisy is None or sigma is None or (sigma >= NOISY) == self.noisy
        return bundle == self.bundle and self.mask in ("", operator.get("mask", "values")) and noise_fits

    def table(self, operator: Mapping[str, str]) -> PaperTable | None:
        """Return the paper's table to compare with, None if the paper has no such operator."""
        if self.key == "sensing":
            return sensing_table(number(operator.get("ratio")) or 0.3)
        return TABLES[self.key]

    @property
    def ablation(self) -> PaperTable | None:
        """The paper's comparison of architectures, if it made one."""
        return ABLATIONS.get(self.key)

    @property
    def unknown_noise(self) -> PaperTable | None:
        """The paper's table of losses that don't know the noise level, if it made one."""
        return UNKNOWN_NOISE.get(self.key)


STUDIES = (
    Study(
        "mri_x8",
        "fastmri_synthetic",
        (),
        ("demo",),
        (),
        "python -m data_prep fastmri SRC bundles/fastmri_synthetic/data/fastmri_x8_40db.h5",
        "python -m data_prep demo mri demo.h5",
        ("supervised", "es", "ei", "sure"),
        ("ei_alternating", "mc", "unsure", "supervised_neq", "es_neq", "splitting", "ei_neq", "tikhonov", "tv"),
        noisy=False,
    ),
    Study(
        "mri_x6",
        "fastmri_synthetic",
        ("x6_10db",),
        ("x6_10db", "demo"),
        (("data_file", "demo_10db.h5"), ("experiment", "fastmri_synthetic_x6_demo")),
        "python -m data_prep fastmri SRC bundles/fastmri_synthetic/data/fastmri_x6_10db.h5 --acceleration 6 "
        "--center-fraction 0.08 --sigma 0.1",
        "python -m data_prep demo mri demo_10db.h5 --sigma 0.1",
        ("supervised", "es", "ei", "sure"),
        ("ei_alternating", "mc", "splitting", "tikhonov", "tv"),
        noisy=True,
    ),
    Study(
        "mri_real",
        "fastmri_real",
        (),
        ("demo",),
        (),
        "python -m data_prep fastmri SRC bundles/fastmri_real/data/fastmri_real_x8.h5 --measurements real",
        "python -m data_prep demo kspace demo_kspace && python -m data_prep fastmri demo_kspace demo_real.h5 "
        "--measurements real --coils multi --virtual-coils 4 --slices all --acceleration 4 --center-fraction 0.12 "
        "--mask-seed 5 --train 10 --test 2 --val 1",
        ("supervised", "es", "ei", "mc"),
        ("tikhonov", "tv"),
    ),
    Study(
        "ct",
        "lidc_ct",
        (),
        ("demo",),
        (),
        "python -m data_prep lidc SRC bundles/lidc_ct/data/lidc_50views.h5",
        "python -m data_prep demo ct demo_ct.h5",
        ("supervised", "es", "ei"),
        ("sure", "mc", "splitting", "tikhonov", "tv"),
    ),
    Study(
        "inpainting",
        "div2k_inpainting",
        (),
        ("demo",),
        (),
        "python -m data_prep div2k SRC bundles/div2k_inpainting/data/div2k_values30.h5",
        "python -m data_prep demo natural demo_natural.h5",
        ("supervised", "es", "ei", "mc"),
        ("supervised_neq", "splitting", "es_neq", "ei_neq", "mc_neq", "tv", "biharmonic"),
        mask="values",
    ),
    Study(
        "pushbroom_random",
        "div2k_inpainting",
        ("pushbroom_random",),
        ("pushbroom_random", "demo"),
        (("data_file", "demo_pushbroom.h5"), ("experiment", "div2k_inpainting_pushbroom_demo")),
        "python -m data_prep div2k SRC bundles/div2k_inpainting/data/div2k_pushbroom.h5 --mask random_columns --keep 0.5 "
        "--sigma 0.1",
        "python -m data_prep demo natural demo_pushbroom.h5 --mask random_columns --keep 0.5 --sigma 0.1",
        ("supervised", "es", "ei"),
        ("tv", "biharmonic"),
        mask="random_columns",
    ),
    Study(
        "pushbroom_even",
        "div2k_inpainting",
        ("pushbroom_even",),
        ("pushbroom_even", "demo"),
        (("data_file", "demo_even.h5"), ("experiment", "div2k_inpainting_pushbroom_demo")),
        "python -m data_prep div2k SRC bundles/div2k_inpainting/data/div2k_even.h5 --mask even_columns --keep 0.5",
        "python -m data_prep demo natural demo_even.h5 --mask even_columns --keep 0.5",
        ("supervised", "es"),
        ("ei", "mc", "tv", "biharmonic"),
        mask="even_columns",
    ),
    Study(
        "sensing",
        "mnist_cs",
        (),
        ("demo",),
        (),
        "python -m data_prep mnist SRC bundles/mnist_cs/data/mnist_ratio30.h5 --ratio 0.3",
        "python -m data_prep demo digits demo_digits.h5 --ratio 0.3",
        ("supervised", "es", "ei"),
        ("mc", "tv"),
    ),
)
"""The experiments, in the order of the report."""


def study_of(bundle: str, operator: Mapping[str, str]) -> Study | None:
    """Return the study that runs of a bundle belong to, None for any other bundle."""
    return next((study for study in STUDIES if study.holds(bundle, operator)), None)
