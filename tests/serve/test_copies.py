"""`processes: auto`: how many copies of a model a server starts, and that each reason for one is said."""

import pytest

from guerdon.serve.launch import LARGEST, PER_COPY, Machine, choose_copies, machine, serve_settings
from guerdon.settings.serve import ServeSettings
from tables import refuses

BIG = Machine(cores=4, memory=64 << 30, gpu=False)


def folder(path, size=1000):
    path.mkdir()
    with (path / "model.safetensors").open("wb") as file:
        file.truncate(size)
    return str(path)


def chosen(here, models, **others):
    settings, lines = choose_copies(ServeSettings(models=models, **others), here)
    return {name: model.processes for name, model in settings.models.items()}, lines


@pytest.mark.parametrize(("cores", "copies"), [(1, None), (2, None), (3, None), (4, 3), (8, 7), (16, 15)])
def test_one_copy_per_core_but_one(tmp_path, cores, copies):
    found, lines = chosen(BIG._replace(cores=cores), {"prm": {"model_path": folder(tmp_path / "m")}})
    assert found == {"prm": copies}
    assert len(lines) == 1
    assert lines[0].startswith("prm: ")
    assert f"{cores} cores" in lines[0]


def test_models_share_the_cores(tmp_path):
    one, two = folder(tmp_path / "a"), folder(tmp_path / "b")
    models = {"a": {"model_path": one}, "b": {"model_path": two}, "c": {"model_path": one, "processes": 2}}
    assert chosen(BIG._replace(cores=9), models)[0] == {"a": 4, "b": 4, "c": 2}


@pytest.mark.parametrize(
    ("here", "model", "why"),
    [
        (BIG._replace(gpu=True), {}, "GPU"),
        (BIG, {"update_dir": "state"}, "learns"),
        (BIG, {"backend": "constant", "model_path": None}, "text and image models"),
        (BIG, {"custom_backend": "a:b"}, "text and image models"),
        (BIG, {"model_path": "org/name"}, "not known"),
        (BIG._replace(threads=1), {}, "1 threads"),
        (BIG._replace(memory=2 * (PER_COPY + 1000)), {}, "memory for 1"),
    ],
)
def test_one_process_and_why(tmp_path, here, model, why):
    found, lines = chosen(here, {"prm": {"model_path": folder(tmp_path / "m"), **model}})
    assert found == {"prm": None}
    assert "in the server's process" in lines[0]
    assert why in lines[0]


def test_large_weights_and_a_model_that_stays_on_the_cpu(tmp_path):
    large = {"model_path": folder(tmp_path / "large", LARGEST + 1)}
    assert chosen(BIG, {"prm": large})[0] == {"prm": None}
    small = {"model_path": folder(tmp_path / "small"), "options": {"device": "cpu"}}
    assert chosen(BIG._replace(gpu=True), {"prm": small})[0] == {"prm": 3}


def test_what_the_user_says_stays(tmp_path):
    model = {"model_path": folder(tmp_path / "m")}
    for given in (2, None):
        assert chosen(BIG, {"prm": {**model, "processes": given}}) == ({"prm": given}, [])


@pytest.mark.parametrize(("flag", "processes"), [("3", 3), ("auto", "auto"), ("none", None), (None, "auto")])
def test_the_flag(flag, processes):
    settings = serve_settings(None, [], {"model_path": "m", "processes": flag})
    assert settings.models["m"].processes == processes


@pytest.mark.parametrize("given", ["none", "null", None])
def test_none_in_a_file_and_in_an_override_is_no_copies(given, tmp_path):
    file = tmp_path / "serve.yaml"
    file.write_text(f"models: {{prm: {{model_path: m, processes: {'null' if given is None else given}}}}}\n")
    assert serve_settings(file, [], {}).models["prm"].processes is None
    file.write_text("models: {prm: {model_path: m, processes: 2}}\n")
    assert serve_settings(file, [f"models.prm.processes={given or 'null'}"], {}).models["prm"].processes is None


def test_a_wrong_flag_is_refused():
    for wrong in ("0", "many"):
        with refuses("models.m.processes"):
            serve_settings(None, [], {"model_path": "m", "processes": wrong})


def test_this_machine(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")
    assert machine().cores >= 1
    assert machine().memory > 0
    assert machine().threads == 3
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not machine().gpu
