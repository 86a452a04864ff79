"""Equivariant splitting: image-reconstruction networks trained from the measurements of one operator, without ground truth."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("es_medical")
except PackageNotFoundError:  # a source tree that was not installed, as on a bare GPU machine
    __version__ = "0.0.0+source"
