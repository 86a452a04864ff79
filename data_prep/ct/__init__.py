"""Prepare CT DICOM archives: files, headers, series, slices, Hounsfield units, sinograms.

Start reading at `lidc.py`, the command.
"""
