"""A hostile Siemens file gives a stated error, or readable heads: pymapvbvd alone would follow its lengths for ever."""

import struct

import numpy as np
import pytest
from byte_mutants import changed_bytes
from fuzzing import fuzz

from data_prep.mri.twix_file import VB, VD, open_twix
from data_prep.run.manifest import PrepError

SAMPLES, LINES = 8, 6
PROTOCOL = b"""### ASCCONV BEGIN ###
sKSpace.lBaseResolution = 4
sKSpace.lPhaseEncodingLines = 6
sSliceArray.asSlice[0].dReadoutFOV = 100
sSliceArray.asSlice[0].dPhaseFOV = 100
sSliceArray.asSlice[0].dThickness = 5
### ASCCONV END ###
"""


def record(kind, line):
    """One acquisition of one channel; the last one, which ends the scan, has no samples."""
    head = bytearray(kind.head if kind is VB else kind.own)
    last = line == LINES
    head[:3] = (kind.own + (8 * SAMPLES + kind.channel)).to_bytes(3, "little")
    head[kind.flags] = int(last)
    struct.pack_into("<HHH", head, kind.samples, SAMPLES, 1, line)
    struct.pack_into("<H", head, kind.samples + 36, SAMPLES // 2)
    struct.pack_into("<H", head, kind.samples + 48, LINES // 2)
    samples = np.full(2 * SAMPLES, line + 1, "<f4").tobytes()
    return bytes(head) + (b"" if last else samples if kind is VB else bytes(kind.channel) + samples)


def scan(kind):
    """A small fully sampled scan as VB or VD writes it."""
    buffers = b"".join(name + b"\0" + struct.pack("<I", len(PROTOCOL)) + PROTOCOL for name in (b"MeasYaps", b"Meas"))
    length = max(10240, 8 + len(buffers))
    body = (struct.pack("<II", length, 2) + buffers).ljust(length, b"\0")
    body += b"".join(record(kind, line) for line in range(LINES + 1)) + bytes(512)
    if kind is VB:
        return body
    return struct.pack("<IIIIQQ", 1, 1, 0, 0, 10240, len(body)).ljust(10240, b"\0") + body


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", [VB, VD], ids=["VB", "VD"])
def test_siemens_scan_gives_heads_or_a_stated_error(tmp_path, kind):
    pytest.importorskip("mapvbvd", reason="Siemens raw files need the extra `twix`")
    path = tmp_path / "a.dat"
    content = scan(kind)
    start = 0 if kind is VB else 10240

    def twix(mutant):
        path.write_bytes(mutant)
        volume = open_twix(path)
        assert len(volume.size) == 2

    path.write_bytes(content)
    assert open_twix(path).n_slices == 1
    heads = changed_bytes(content[start:], head=700).map(lambda part: content[:start] + part)
    ends = changed_bytes(content[start + 10240 :], most=2).map(lambda part: content[: start + 10240] + part)
    fuzz(changed_bytes(content, head=64) | heads | ends, twix, PrepError, 60)
