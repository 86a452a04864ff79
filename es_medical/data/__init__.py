"""HDF5 files of slices: what data_prep writes and the bundles read."""

from es_medical.data.cache import CachedSlices, cached
from es_medical.data.slices import (
    SCHEMA,
    SPLITS,
    Shapes,
    SliceDataset,
    SliceHeader,
    SliceRecord,
    SliceWriter,
    file_digest,
    read_header,
)

__all__ = [
    "SCHEMA",
    "SPLITS",
    "CachedSlices",
    "Shapes",
    "SliceDataset",
    "SliceHeader",
    "SliceRecord",
    "SliceWriter",
    "cached",
    "file_digest",
    "read_header",
]
