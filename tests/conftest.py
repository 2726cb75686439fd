"""What several test files share: no network, Hypothesis without clocks, the default model."""

import gc
import os
import signal
from pathlib import Path

# Threads of torch that wait for each other sleep: as many workers as cores, each with threads for
# all cores, would else wait in a loop, and take the cores from those that are waited for.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
from hypothesis import HealthCheck, settings

from bertcli.errors import LOG, Log, in_python

try:
    import torch
except ImportError:  # an extra, which the tests marked `light` do without
    torch = None

os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "true"

# Under nohup, or in the background of a script, signals are ignored, and children inherit that.
for _name, _usual in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
    _number = getattr(signal, _name, None)  # Windows has one of them
    if _number is not None and signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)

# Every run tries the same examples, so that a failure is one of this change. HYPOTHESIS_PROFILE=
# explore looks for new ones.
_CLOCKLESS = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
}
settings.register_profile("same", max_examples=25, derandomize=True, database=None, **_CLOCKLESS)
settings.register_profile("explore", max_examples=400, print_blob=True, **_CLOCKLESS)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

THREADS = torch and torch.get_num_threads()

gc.set_threshold(100_000)  # as commands have it: to look for garbage is a tenth of all time


@pytest.fixture(autouse=True)
def threads():
    """Give a test the threads that a fresh process has, whatever ran in this one before."""
    if torch:
        torch.set_num_threads(THREADS)


class RecordedLog(Log):
    """A log that keeps the messages."""

    def __init__(self):
        self.messages = []

    def write(self, level, message):
        self.messages.append(in_python(message))


@pytest.fixture
def messages():
    """Return the list of the messages that the library writes during a test."""
    log = RecordedLog()
    LOG.connect(log)
    yield log.messages
    LOG.disconnect()


@pytest.fixture
def hub(monkeypatch):
    """A local server that speaks the endpoints of the hub; commands use it."""
    from fake_hub import FakeHub

    with FakeHub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


@pytest.fixture(params=["torch", "openvino"])
def engine(request, monkeypatch):
    """Run the commands of a test by each engine."""
    monkeypatch.setattr("front.BACKEND", request.param)
    return request.param


@pytest.fixture
def usual_engine(monkeypatch):
    """Run commands as users do, by the engine whose vectors have the same bits in any batch."""
    monkeypatch.setattr("front.BACKEND", "auto")


@pytest.fixture(scope="session")
def default_folder() -> Path:
    from bertcli.model_folder.find import find_model
    from bertcli.model_folder.hub_cache import DEFAULT_MODEL

    return find_model(DEFAULT_MODEL, offline=True).path


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Folders of small random models with task heads."""
    from task_models import Models

    return Models(tmp_path_factory.mktemp("heads"))


@pytest.fixture(scope="session")
def forked():
    """What starts commands as forks of a process that has imported everything, and kills them."""
    from forks import forks

    with forks() as running:
        yield running


@pytest.fixture
def ran(monkeypatch):
    """The number of texts that a model ran over, for each call."""
    from bertcli.embedding.record_embedder import RecordEmbedder

    texts = []
    original = RecordEmbedder._run

    def run(self, tokens, *reduction):
        texts.append(len(tokens))
        return original(self, tokens, *reduction)

    monkeypatch.setattr(RecordEmbedder, "_run", run)
    return texts
