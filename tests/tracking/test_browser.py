"""What a person sees in a browser: the page of a run from the disk, and MLflow's pages of the run."""

import threading
from contextlib import contextmanager

import pytest
from browser import PROGRAM, Browser
from tiny import execute, runs, workflow

from es_medical.tracking.server import address

pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium here"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
]
PATIENCE = 60  # seconds, on a machine that others use


@pytest.fixture(scope="module")
def finished(tmp_path_factory, data_file, workflow_uri, client):
    folder = tmp_path_factory.mktemp("seen")
    execute(workflow(["train.yaml"], folder, data_file, workflow_uri))
    (run,) = runs(client, folder.name)
    return run, folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser") / "profile") as page:
        yield page


@contextmanager
def mlflow_pages(uri):
    """Serve MLflow's pages from this process: the command takes longer to start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("_MLFLOW_SERVER_FILE_STORE", uri)
        patch.setenv("_MLFLOW_SERVER_REGISTRY_STORE", uri)
        from mlflow.server import app
        from werkzeug.serving import make_server

        server = make_server("127.0.0.1", 0, app, threaded=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(10)


SUM = (
    "(() => {{ const c = document.querySelector('#panel-{0} canvas'); if (!c) return 0; "
    "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; return d.reduce((a, b) => a + b) }})()"
)
SET = "(() => {{ const e = document.getElementById('{0}'); e.value = {1}; e.dispatchEvent(new Event('input')) }})()"


def test_page_from_the_disk_steps_through_the_epochs_with_a_window(finished, browser):
    run, folder = finished
    browser.open((folder / "models" / "overview.html").as_uri())
    browser.wait("document.querySelectorAll('#panels canvas').length == 5", PATIENCE)
    assert browser.value("document.getElementById('verdict').innerText") in run.data.tags["mlflow.note.content"]
    assert browser.value("document.querySelectorAll('#summary tr').length") == 3
    assert browser.value("document.querySelectorAll('#curves svg polyline').length") == 6  # PSNR, SSIM twice; held-out; loss
    last = browser.value(SUM.format("reconstruction"))
    browser.value(SET.format("epoch", 0))
    browser.wait("document.getElementById('at').innerText == '0'")
    browser.wait(f"{SUM.format('reconstruction')} != {last}")
    first, spread = browser.value(SUM.format("reconstruction")), browser.value(SUM.format("spread"))
    browser.value(SET.format("high", 50))
    browser.wait(f"{SUM.format('reconstruction')} > {first}")  # brighter
    assert browser.value(SUM.format("spread")) == spread
    browser.value("document.getElementById('slice').selectedIndex = 1; document.getElementById('slice').onchange()")
    browser.wait("document.getElementById('epoch').disabled")  # a test slice has one epoch


def test_mlflow_shows_the_result_the_charts_the_pictures_and_the_page(finished, browser, workflow_uri):
    run, _ = finished
    with mlflow_pages(workflow_uri) as server:
        place = address(server, run.info.experiment_id, run.info.run_id)
        browser.open(place)
        browser.wait("document.body.innerText.includes('ES, no ground truth:')", PATIENCE)
        assert run.info.run_name in browser.value("document.body.innerText")
        assert "diagnosis" not in browser.value("document.body.innerText")
        browser.open(place.replace("?", "/model-metrics?"))
        browser.wait("document.body.innerText.includes('recon/item4')", PATIENCE)
        tile = "[...document.querySelectorAll('img')].find(i => i.src && i.naturalWidth > 300)"
        browser.wait(f"!!{tile}", PATIENCE)
        browser.open(place.replace("?", "/artifacts/overview.html?"))
        browser.wait_for_nodes('"summary".*"CANVAS"', PATIENCE)  # inside the frame, after its script ran
