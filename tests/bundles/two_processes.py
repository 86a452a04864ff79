"""One of the processes that torchrun starts: `two_processes.py FOLDER DATA_FILE URI`; leaves a digest of its weights."""

import hashlib
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny import workflow  # noqa: E402

from es_medical.engine.distributed import rank, unwrapped, world_size  # noqa: E402


def train(folder: Path, data_file: str, uri: str, epochs: int, resume: bool = False):
    files = ["train.yaml", "multi_gpu_train.yaml"]
    one = workflow(files, folder, data_file, uri, batch_size=1, logging_file=None, epochs=epochs, resume=resume)
    one.initialize()
    one.run()
    return one


def digest(one) -> str:
    network = unwrapped(one.parser.get_parsed_content("network"))
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in network.state_dict().values())).hexdigest()


def main(folder: Path, data_file: str, uri: str) -> None:
    straight = train(folder, data_file, uri, epochs=2)
    trainer = straight.parser.get_parsed_content("train#trainer")
    found = {"weights": digest(straight), "steps": trainer.state.iteration, "processes": world_size()}
    found["generator"] = hashlib.sha256(trainer.generator.get_state().numpy().tobytes()).hexdigest()
    parts = folder / f"{folder.name}-resumed"
    train(parts, data_file, uri, epochs=1)
    last = train(parts, data_file, uri, epochs=2, resume=True)
    found["resumed"] = digest(last)
    (folder / f"rank{rank()}.json").write_text(json.dumps(found))
    last.finalize()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
