"""The paper's synthetic setting: magnitude ground truth, k-space simulated once with one mask.

The ground truth is the magnitude reconstruction, min-max normalised, with zero imaginary part; the measurement is its
undersampled k-space plus noise (paper, "Details about the experiments").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from data_prep.mri.fastmri_file import Volume, open_volume, read_target
from data_prep.mri.normalisation import Acquisition, Normalisation, crop_or_pad
from es_medical.data import SliceHeader, SliceRecord
from es_medical.data.geometry import Geometry

if TYPE_CHECKING:
    from data_prep.run.manifest import Pseudonyms


@dataclass(frozen=True)
class Simulation:
    """What all slices of a file go through.

    Attributes:
        acquisition: the simulated acquisition.
        by: what the images are normalised by.
    """

    acquisition: Acquisition
    by: Normalisation
    coils = 0

    @property
    def size(self) -> tuple[int, int]:
        """(H, W) of the images."""
        return self.acquisition.size

    @property
    def with_image(self) -> bool:
        """Whether ground truth is stored."""
        return self.acquisition.with_image

    def header(self, configuration: Mapping[str, object], source_digests: Mapping[str, str], digest: str) -> SliceHeader:
        """The header of the file."""
        return self.acquisition.header(configuration, source_digests, digest)

    def records(
        self, volume: Volume, indices: Sequence[int], split: str, pseudonyms: Pseudonyms
    ) -> Iterator[tuple[SliceRecord, tuple[str, ...]]]:
        """Normalises and measures some slices of a volume, one at a time.

        Raises:
            PrepError: a slice cannot be used; the message names it.
        """
        subject = pseudonyms.of("subject", volume.subject)
        with open_volume(volume.path) as file:
            for i in indices:
                x = crop_or_pad(read_target(file, volume.target, i, volume.size), self.size)
                key = pseudonyms.of("slice", volume.digest, i)
                place = Geometry(spacing=volume.spacing)
                record = self.acquisition.record(x, volume.range, self.by, key, subject, split, place, i)
                yield record._replace(volume=pseudonyms.of("volume", volume.digest)), ()
