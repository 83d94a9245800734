"""Labels that are sampled on a Ray cluster are those of one process, also when workers are killed."""

import os
import signal
from contextlib import closing

import pytest
from label_studies import study_of

from guerdon.endpoints.completions import weights_hash
from guerdon.engines.ray_label import LabelWorkers
from guerdon.errors import ConfigError
from guerdon.labels.label import label
from guerdon.policies.language.text_files import load_policy

ray = pytest.importorskip("ray", reason="needs guerdon[ray]")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def workers_of(study):
    return LabelWorkers(study.cluster, study.generation, study.runner)


@pytest.fixture(scope="module", autouse=True)
def cluster():
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def small_groups(model, save_dir, **label):
    """A study in which two completions are sampled at a time."""
    study = study_of(model, save_dir, **label)
    return study.model_copy(update={"generation": study.generation.model_copy(update={"batch_size": 2})})


def on_ray(study, workers=2):
    cluster = study.cluster.model_copy(update={"label_workers": workers, "label_worker_cpus": 0.5})
    return study.model_copy(update={"engine": "ray", "cluster": cluster})


def written(folder):
    """The files of a data set but for its card, which has the folder's own name in it."""
    files = {p.name: p.read_bytes() for p in folder.iterdir() if p.name not in ("card.json", "SEAL.json")}
    assert "records.jsonl" in files
    return files


MONTE_CARLO = {"labeler": "monte_carlo", "monte_carlo": {"completions": 2}, "mining": {"attempts": 2}}
BINARY = {"labeler": "binary_search", "monte_carlo": {"completions": 2}}


@pytest.mark.parametrize("how", [MONTE_CARLO, BINARY], ids=["monte_carlo", "binary_search"])
def test_any_number_of_workers_gives_the_labels_of_one_process(policy, tmp_path, how):
    one = label(small_groups(policy, tmp_path / "one", **how))
    for count in (1, 2):
        study = on_ray(small_groups(policy, tmp_path / str(count), **how), count)
        with closing(workers_of(study)) as workers:
            found = label(study, sample_with=workers.sample_with)
        assert written(found.folder) == written(one.folder)
        assert found.card["sampled"] == one.card["sampled"]
        assert found.card["sampled"]["continue: texts"] > 4


def test_what_a_killed_worker_sampled_is_sampled_again(policy, tmp_path):
    one = label(small_groups(policy, tmp_path / "one", **MONTE_CARLO))
    study, killed = on_ray(small_groups(policy, tmp_path / "ray", **MONTE_CARLO)), []
    with closing(workers_of(study)) as workers:

        def sample_with(settings, fingerprint):
            sample = workers.sample_with(settings, fingerprint)

            def killing(groups):
                for place, found in sample(groups):
                    alive = [one for one in workers._actors if one.running and one not in killed]
                    if alive and len(killed) < 2 and place + 1 < len(groups):
                        killed.append(alive[0])
                        os.kill(ray.get(alive[0].ready), signal.SIGKILL)
                    yield place, found

            return killing

        found = label(study, sample_with=sample_with)
        assert workers._actors.replaced == len(killed) == 2
    assert written(found.folder) == written(one.folder)


def test_what_was_sampled_elsewhere_is_not_sampled_again(policy, tmp_path):
    study = small_groups(policy, tmp_path / "both", **MONTE_CARLO)
    one = written(label(study).folder)
    with closing(workers_of(on_ray(study))) as workers:
        found = label(on_ray(study), sample_with=workers.sample_with)
        assert "_actors" not in vars(workers), "nothing was left to sample"
    assert written(found.folder) == one


def test_other_weights_on_a_node_are_refused(policy, tmp_path):
    study = on_ray(small_groups(policy, tmp_path / "one", **MONTE_CARLO))
    assert weights_hash(load_policy(study.text_policy, seed=0)) != "0" * 32
    with closing(workers_of(study)) as workers, pytest.raises(ConfigError, match="other weights"):
        label(study, sample_with=lambda settings, _: workers.sample_with(settings, "0" * 32))
