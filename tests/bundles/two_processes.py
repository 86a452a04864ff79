"""One of the processes that torchrun starts: `two_processes.py FOLDER URI BUNDLE ...`; leaves a digest of its weights."""

import hashlib
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny import workflow  # noqa: E402

from es_medical.engine.distributed import rank, unwrapped, world_size  # noqa: E402


def train(folder: Path, data_file: Path, uri: str, bundle: str, epochs: int, resume: bool = False):
    files = ["train.yaml", "multi_gpu_train.yaml"]
    log = None if world_size() == 1 else False  # the bundle's logging.conf once, before the processes have joined
    knobs = {"batch_size": 1, "logging_file": log, "epochs": epochs, "resume": resume}
    knobs |= {"ema": 0.9, "warmup": 3, "n_splits": 2, "warm_images": 4, "warm_epochs": 1}
    one = workflow(files, folder, data_file, uri, bundle, **knobs)
    one.initialize()
    one.run()
    return one


def digest(one) -> str:
    network = unwrapped(one.parser.get_parsed_content("network"))
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in network.state_dict().values())).hexdigest()


def trainings(folder: Path, uri: str, bundle: str):
    """Two epochs at once, and one epoch after another; the last workflow is left open."""
    data_file = folder / f"{bundle}.h5"
    straight = train(folder / bundle, data_file, uri, bundle, epochs=2)
    trainer = straight.parser.get_parsed_content("train#trainer")
    found = {"weights": digest(straight), "steps": trainer.state.iteration, "processes": world_size()}
    found["generator"] = hashlib.sha256(trainer.generator.get_state().numpy().tobytes()).hexdigest()
    parts = folder / f"{bundle}-resumed"
    train(parts, data_file, uri, bundle, epochs=1)
    last = train(parts, data_file, uri, bundle, epochs=2, resume=True)
    return found | {"resumed": digest(last)}, last


def main(folder: Path, uri: str, *bundles: str) -> None:
    found = {}
    for bundle in bundles:
        found[bundle], last = trainings(folder, uri, bundle)
    (folder / f"rank{rank()}.json").write_text(json.dumps(found))
    last.finalize()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
