"""Every file that leaves for a person or an archive: NIfTI, DICOM, PNG, pictures and tables.

Start reading at `saving.py`.
"""
