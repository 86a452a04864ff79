"""Preparation of raw files: k-space, CT DICOM archives, photographs and digits become one HDF5 file of slices.

`run` is what every command does around its own reading (checks, threads, the file, its manifest, the summary); `mri`, `ct`
and `images` read one kind of source each; `demo` makes small data from installed packages; `inference` prepares one scan as the
training data were. Start reading at `run/runner.py`, then `images/div2k.py`, a short command.
"""
