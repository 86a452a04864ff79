"""HDF5 slice files, which data_prep writes and the bundles read; planes and stacks of slices; DICOM files.

Start reading at `schema.py`, which defines what a slice file holds.
"""

from es_medical.data.cache import CachedSlices
from es_medical.data.schema import SCHEMA, SPLITS, SliceHeader, SliceRecord, file_digest, read_header
from es_medical.data.slices import SliceDataset
from es_medical.data.writer import Shapes, SliceWriter

__all__ = [
    "SCHEMA",
    "SPLITS",
    "CachedSlices",
    "Shapes",
    "SliceDataset",
    "SliceHeader",
    "SliceRecord",
    "SliceWriter",
    "file_digest",
    "read_header",
]
