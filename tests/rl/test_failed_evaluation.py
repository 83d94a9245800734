"""What fails at an evaluation, a video or the end of a run loses nothing: `--resume` continues with what is due."""

import pytest

from guerdon.errors import DataError
from guerdon.rl.loop import Loop
from guerdon.rl.run import run_folder
from tables import first
from text_rl import letter_study, lines, result, start

OPTIONS = {"checkpoint_every": 1000, "film_every": 64}


class Broken(RuntimeError):
    pass


def broken_once(monkeypatch, method, at, error):
    """Let a method of the loop fail when the run is at a step, the first time."""
    right, failed = getattr(Loop, method), []

    def wrong(self, *given):
        if self.step == at and not failed:
            failed.append(at)
            raise error
        return right(self, *given)

    monkeypatch.setattr(Loop, method, wrong)
    return failed


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The files of a run that nothing breaks."""
    study = letter_study(tmp_path_factory.mktemp("whole"), name="whole", runner=OPTIONS)
    start(study).run()
    return result(study)


@pytest.mark.parametrize("error", first([DataError("no room"), Broken("a mistake"), KeyboardInterrupt()], 1), ids=repr)
@pytest.mark.parametrize(("method", "at"), first([("_true_success", 32), ("_complete", 64), ("_true_success", 64),
                                                  ("_show", 64)], 2, several=True))  # fmt: skip
def test_a_run_that_fails_there_goes_on_where_it_failed(tmp_path, monkeypatch, whole, method, at, error):
    cut = letter_study(tmp_path, name="cut", runner=OPTIONS)
    assert broken_once(monkeypatch, method, at, error) == []
    with pytest.raises(type(error)):
        start(cut).run()
    assert [p.name for p in (run_folder(cut) / "checkpoints").iterdir()] == [f"step_{at:012d}"]
    loop = start(cut, resume=True)
    assert loop.step == at
    loop.run()
    assert result(cut) == whole
    assert [row["step"] for row in lines(cut) if row["kind"] == "eval"] == [32, 64]
