"""Recognise DICOM files by their content, read the elements of their headers, and tell which images form a volume.

Start reading at `files.py`; `frames.py` reads enhanced multi-frame images, `volumes.py` is the rule of what a volume is.
"""
