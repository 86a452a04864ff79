"""CT DICOM archives: walk, headers, series, slices, Hounsfield units, sinograms.

Start reading at `lidc.py`, the command.
"""
