"""Recognise DICOM files by their content, and read the elements of their headers.

Start reading at `files.py`.
"""
