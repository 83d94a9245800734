"""What every test runs under: no screen, one thread per library, no compiler.

Set before anything imports torch or MuJoCo, which read these once.
"""

import functools
import gc
import os
import signal
import sys

gc.disable()  # until all tests are collected: what is imported stays, and looking for garbage among it takes seconds

import hypothesis  # noqa: E402
import pytest  # noqa: E402
import typer.main  # noqa: E402

FUZZ_SCALE = float(os.environ.get("GUERDON_FUZZ_SCALE", "0.1"))
"""Property and fuzz tests run a tenth of the examples that they ask for; all of them with GUERDON_FUZZ_SCALE=1, as
`make test-all` does, and ten times as many with 10."""


def scale(settings: type[hypothesis.settings]) -> None:
    """Multiply the number of examples that our tests ask for, or take by default."""
    plain = settings.__init__
    usual = settings().max_examples

    def times(count):
        return max(1, int(FUZZ_SCALE * count))

    def scaled(self, parent=None, **given):
        if not sys._getframe(1).f_globals["__name__"].startswith(("hypothesis", "schemathesis")):
            given["max_examples"] = times(given.get("max_examples", usual))
        plain(self, parent, **given)

    settings.__init__ = scaled
    # No test may depend on how busy the machine is.
    unhurried = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
    settings.register_profile("scaled", max_examples=times(usual), **unhurried)
    settings.load_profile("scaled")


scale(hypothesis.settings)
# The options of the commands are read from their signatures once, not for each call: it takes 0.07 s.
typer.main.get_command = functools.cache(typer.main.get_command)

os.environ.setdefault("MUJOCO_GL", "egl")
os.environ.setdefault("PYOPENGL_PLATFORM", os.environ["MUJOCO_GL"])
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["COLUMNS"] = "120"
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell's background jobs have it, and hand it on
    signal.signal(signal.SIGINT, signal.default_int_handler)
for name in ("DEBUG_IMAGE_SAVE_DIR", "NO_COLOR", "FORCE_COLOR"):
    os.environ.pop(name, None)


def pytest_collection_finish():
    """Modules and tests that are there now are never garbage: a full collection takes no time instead of 0.7 s."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _no_heartbeat(monkeypatch):
    """No progress lines of commands that take long: no test may depend on how busy the machine is."""
    monkeypatch.setattr("guerdon.processes.progress.QUIET_S", 3600.0)


@pytest.fixture(autouse=True, scope="session")
def _no_fsync():
    """No test unplugs the machine: what a run writes need not reach the disk, on which every worker would wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _footers_are_read_once():
    """The footer of a data set's files takes 0.02 s of a core, and a command opens each file several times."""
    from guerdon.files import parquet_bounds

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet_bounds, "_parsed_footer", functools.lru_cache(64)(parquet_bounds._parsed_footer))
        yield


@pytest.fixture(autouse=True, scope="session")
def _simulators_are_forked():
    """Simulators in processes are forked from one that has imported them (`started`): each takes 1 to 4 s to import.

    `test_users_modules.py` starts one in a new interpreter, as guerdon does.
    """
    import started
    from guerdon.processes import subprocess_worker

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess_worker, "subprocess", started.with_forked_simulators())
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_tf32():
    """Convolutions on a GPU are in float32, as matrix products: torch's default rounds what they read to TF32."""
    if "torch" in sys.modules:
        sys.modules["torch"].backends.cudnn.allow_tf32 = False


class _Lasting:
    """A pool of processes that stays when it is closed."""

    def __init__(self, pool):
        self._pool = pool

    def __enter__(self):
        return self._pool

    def __exit__(self, *_):
        pass


@pytest.fixture(autouse=True, scope="session")
def _processes_for_chat_templates():
    """The process that renders new chat templates is started once, not for each: it takes 0.7 s to import them."""
    from guerdon.policies.pretrained import chat_template

    make, pools = chat_template.SubprocessPool, {}

    def lasting(command, **options):
        if tuple(command) not in pools:
            pools[tuple(command)] = make(command, **options)
        return _Lasting(pools[tuple(command)])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chat_template, "SubprocessPool", lasting)
        yield
    for pool in pools.values():
        pool.close()


@pytest.fixture(scope="module")
def narrow_resnets():
    """Image reward models are ResNets of an eighth of the width: the same layers at a fiftieth of the arithmetic.

    For files whose tests are about what surrounds the network; a process that is started, not forked, has wide ones.
    """
    from guerdon.models.images import backbone

    wide = backbone._config

    def narrow(arch):
        config = wide(arch)
        config.embedding_size //= 8
        config.hidden_sizes = [size // 8 for size in config.hidden_sizes]
        return config

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backbone, "_config", narrow)
        yield


@pytest.fixture
def frequent_switches():
    """Threads are switched very often, so that unprotected calls interfere."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def no_gpu(monkeypatch):
    """The test computes by hand on the CPU what a policy computes: that has to be there, too."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


@pytest.fixture
def shares_on_gpus(monkeypatch):
    """Prompts are read once on a GPU, too, where that saves little."""
    from guerdon.policies.batches import prompt_sharing

    monkeypatch.setattr(prompt_sharing, "WORTH_ON_GPU", prompt_sharing.WORTH_IT)


@pytest.fixture
def by_hand(request):
    """As `no_gpu`, but a GPU that only seems to be there (`pretend_cuda`) stays: it computes exactly, and mixes."""
    if request.config.getoption("--pretend-cuda", None) != "usual":
        request.getfixturevalue("no_gpu")
