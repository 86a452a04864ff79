"""What is sent to an archive arrives as it was sent (DCMTK's storescu and storescp on this machine)."""

import shutil
import socket
import subprocess
import time
from contextlib import contextmanager

import pydicom
import pytest
from dicom_parts import random_volume

from es_medical.output.dicom.series import Derivation
from es_medical.output.dicom.writer import DicomWriter

pytest.importorskip("highdicom", reason="the extra `dicom` is not installed")


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def listens(port):
    with socket.socket() as one:
        one.settimeout(1)
        return one.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def archive(folder):
    """A storescp that writes to `folder`; yields its port. It ends with the block, whatever happens."""
    port = free_port()
    command = ["storescp", "-ta", "10", "-td", "10", "--output-directory", str(folder), str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 20
        while not listens(port) and process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        assert process.poll() is None, "storescp did not start"
        yield port
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


@pytest.mark.skipif(not shutil.which("storescp") or not shutil.which("storescu"), reason="storescu, storescp (Debian: dcmtk)")
def test_files_arrive_intact_at_an_archive(tmp_path):
    DicomWriter(tmp_path / "out", Derivation("es", 8)).write(random_volume(2, (9, 7)))
    sent = {one.SOPInstanceUID: one for one in map(pydicom.dcmread, (tmp_path / "out").rglob("*.dcm"))}
    (tmp_path / "archive").mkdir()
    with archive(tmp_path / "archive") as port:
        command = ["storescu", "-R", "-to", "5", "-ta", "10", "-td", "10", "+sd", "+r", "127.0.0.1", str(port)]
        done = subprocess.run([*command, tmp_path / "out"], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
    arrived = {one.SOPInstanceUID: one for one in map(pydicom.dcmread, (tmp_path / "archive").iterdir())}
    assert arrived.keys() == sent.keys()
    assert len(sent) == 3
    for uid, one in sent.items():
        assert arrived[uid] == one  # every element, pixels and identifiers among them
        assert arrived[uid].file_meta.TransferSyntaxUID == one.file_meta.TransferSyntaxUID
