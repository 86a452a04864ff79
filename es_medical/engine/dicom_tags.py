"""Attributes of a source slice that a derived image keeps, by module of the MR Image IOD (PS3.3 A.4)."""

# patient and patient study modules, and what says whether they were de-identified
PATIENT = (
    "PatientName",
    "PatientID",
    "IssuerOfPatientID",
    "PatientBirthDate",
    "PatientSex",
    "OtherPatientIDsSequence",
    "PatientAge",
    "PatientSize",
    "PatientWeight",
    "PatientIdentityRemoved",
    "DeidentificationMethod",
    "DeidentificationMethodCodeSequence",
    "LongitudinalTemporalInformationModified",
)
# general study module
STUDY = (
    "StudyInstanceUID",
    "StudyDate",
    "StudyTime",
    "ReferringPhysicianName",
    "StudyID",
    "AccessionNumber",
    "StudyDescription",
    "IssuerOfAccessionNumberSequence",
    "ProcedureCodeSequence",
)
# frame of reference, and what places the body
PLACE = (
    "FrameOfReferenceUID",
    "PositionReferenceIndicator",
    "PatientPosition",
    "BodyPartExamined",
    "Laterality",
    "ImageLaterality",
)
# MR image module: how the echoes were made
SCAN = (
    "ScanningSequence",
    "SequenceVariant",
    "ScanOptions",
    "MRAcquisitionType",
    "SequenceName",
    "RepetitionTime",
    "EchoTime",
    "EchoTrainLength",
    "InversionTime",
    "MagneticFieldStrength",
    "ImagingFrequency",
    "ImagedNucleus",
    "FlipAngle",
    "NumberOfAverages",
    "EchoNumbers",
    "ProtocolName",
    "ContrastBolusAgent",
    "SliceThickness",
)
# type 2: present, empty where unknown
EMPTY_ALLOWED = (
    "PatientName",
    "PatientID",
    "PatientBirthDate",
    "PatientSex",
    "StudyDate",
    "StudyTime",
    "ReferringPhysicianName",
    "StudyID",
    "AccessionNumber",
    "PositionReferenceIndicator",
    "PatientPosition",
    "ScanOptions",
    "MRAcquisitionType",
    "RepetitionTime",
    "EchoTime",
    "EchoTrainLength",
    "SliceThickness",
    "AcquisitionNumber",
    "Laterality",
)
# scan options that ask for a trigger time
GATING = frozenset({"CG", "PPG"})
