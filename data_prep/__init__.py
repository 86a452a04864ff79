"""Prepare raw files: k-space, CT DICOM archives, photographs and digits become one HDF5 file of slices.

`run` holds what all commands share (checks, threads, the file, its manifest, the summary); `mri`, `ct` and `images` read one
kind of source each; `demo` makes small data from installed packages; `inference` prepares one scan in the same way as the
training data. Start reading at `run/runner.py`, then `images/div2k.py`, a short command.
"""
