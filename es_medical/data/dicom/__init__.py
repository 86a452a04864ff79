"""DICOM files by their content, and the elements of their headers.

Start reading at `files.py`.
"""
