"""Attributes of a source slice that a derived image keeps, by module of the MR and CT Image IODs (PS3.3 A.4, A.3)."""

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
MR_SCAN = (
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
# CT image module: what decides the Hounsfield units; not what made the pixels of the source (kernel, dose, beam geometry)
CT_SCAN = (
    "ScanOptions",
    "KVP",
    "FilterType",
    "DataCollectionDiameter",
    "GantryDetectorTilt",
    "TableHeight",
    "ProtocolName",
    "ContrastBolusAgent",
    "ContrastBolusRoute",
    "SliceThickness",
    "LossyImageCompression",  # where the sinogram was simulated from these pixels, its loss is ours
    "LossyImageCompressionRatio",
    "LossyImageCompressionMethod",
)
# type 2: present, empty where unknown
TYPE_2 = (
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
    "SliceThickness",
    "AcquisitionNumber",
    "Laterality",
)
MR_TYPE_2 = (*TYPE_2, "ScanOptions", "MRAcquisitionType", "RepetitionTime", "EchoTime", "EchoTrainLength")
CT_TYPE_2 = (*TYPE_2, "KVP")
# body parts that have no side (PS3.16 annex L), where Laterality must not stand
# fmt: off
UNPAIRED = frozenset(
    {
        "ABDOMEN", "ABDOMENPELVIS", "AORTA", "BACK", "BLADDER", "BRAIN", "CHEST", "CHESTABDOMEN", "CHESTABDPELVIS",
        "CIRCLEOFWILLIS", "COCCYX", "COLON", "CSPINE", "CTSPINE", "DUODENUM", "ESOPHAGUS", "FACE", "GALLBLADDER", "HEAD",
        "HEADNECK", "HEART", "ILEUM", "JAW", "JEJUNUM", "LARYNX", "LIVER", "LSPINE", "LSSPINE", "MAXILLA", "MEDIASTINUM",
        "MOUTH", "NECK", "NECKCHEST", "NECKCHESTABDOMEN", "NECKCHESTABDPELV", "NOSE", "PANCREAS", "PELVIS", "PENIS",
        "PHARYNX", "PROSTATE", "RECTUM", "SCALP", "SKULL", "SPINE", "SPLEEN", "SSPINE", "STERNUM", "STOMACH", "THYMUS",
        "THYROID", "TLSPINE", "TONGUE", "TRACHEA", "TSPINE", "URETHRA", "UTERUS", "VAGINA", "VULVA", "WHOLEBODY",
    }
)
# fmt: on
# scan options that ask for a trigger time
GATING = frozenset({"CG", "PPG"})
# values of ImageType of an image that plans a CT scan
SCOUTS = frozenset({"LOCALIZER", "SCOUT", "TOPOGRAM"})
