"""Write results for people and archives: NIfTI, DICOM, PNG, pictures and tables.

Start reading at `saving.py`.
"""
