"""Other people's reward models: each family's own example, prefix by prefix, against one forward pass for all steps."""

import json
import re

import numpy as np
import pytest
import torch
from adapter_models import (
    FAMILIES,
    QUESTION,
    STEPS,
    Implicit,
    MathShepherd,
    Qwen,
    RLHFlow,
    Skywork,
    Trl,
    by_prefix,
    byte_level,
    characters,
    mistral_tokenizer,
    qwen_tokenizer,
)
from transformers import LlamaTokenizer
from transformers.models.llama.modeling_llama import LlamaModel
from transformers.models.mistral.modeling_mistral import MistralModel
from transformers.models.qwen2.modeling_qwen2 import Qwen2Model

from guerdon.errors import CheckpointError, ConfigError
from guerdon.models.explained_score import Judge, JudgeOptions, judge
from guerdon.models.text.adapters import ADAPTERS, adapter_of, families, load_adapter, recognise
from guerdon.models.text.text_load import load_text_model
from guerdon.policies.language.tiny_text import byte_tokenizer
from guerdon.types import Episode, RewardModel
from tables import cases

torch.set_num_threads(1)
OTHERS = (
    (QUESTION, STEPS),
    ("1+1?", ("1+1=2.",)),
    ("A longer question than the others, is it not?", ("a", "So it is.\n\n", "b + c - d", "The answer is 6.", "e")),
    ("user assistant + - ки?", ("The user says + and -.\n", "assistant: ки ки\n", "+", "-", "ки", "\n\n")),
)  # what reads like a marker, a role or a verdict is only text


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda f: f.name)
def known(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param.name)
    family = request.param(folder)
    device = "cpu" if torch.cuda.is_bf16_supported() else "auto"  # compared with what is computed in float32
    return family, load_adapter(family.name, str(folder), 3, device), folder


def episode(question=QUESTION, steps=STEPS, name="e"):
    return Episode(id=name, task=question, texts=tuple(steps))


def test_one_forward_gives_what_the_familys_example_gives_step_by_step(known):
    family, model, _ = known
    scores = model.score([episode(q, s) for q, s in OTHERS])
    for (question, steps), score in zip(OTHERS, scores, strict=True):
        assert score.steps.shape == (len(steps),)
        np.testing.assert_allclose(score.steps, by_prefix(family, question, steps), atol=2e-5)
    values = np.concatenate([s.steps for s in scores])
    assert values.std() > 0.02
    assert 0 <= values.min() <= values.max() <= 1


def test_company_and_order_change_nothing(known):
    _, model, _ = known
    episodes = [episode(q, s) for q, s in OTHERS] * 2
    together = model.score(episodes)
    for i in (0, 2, 5):
        np.testing.assert_allclose(model.score([episodes[i]])[0].steps, together[i].steps, atol=2e-6)
    assert model.score([]) == []


def test_as_many_forward_passes_as_micro_batches(known, monkeypatch):
    _, model, _ = known
    calls = []
    for kind in (LlamaModel, MistralModel, Qwen2Model):
        inner = kind.forward

        def counted(self, *args, inner=inner, **kwargs):
            calls.append((args[0] if args else kwargs["input_ids"]).shape)
            return inner(self, *args, **kwargs)

        monkeypatch.setattr(kind, "forward", counted)
    model.score([episode(steps=["1."] * 8)] * 7)  # in groups of 3, eight steps each
    networks = 2 if model.info.name == "implicit" else 1
    assert len(calls) == 3 * networks


def test_the_contract_of_a_reward_model_and_a_judge(known):
    _, model, _ = known
    assert isinstance(model, RewardModel)
    assert isinstance(model, Judge)
    info = model.info
    assert (info.range, info.granularity, info.modality, info.causal) == ((0, 1), "step", "text", True)
    (judged,) = judge(model, [episode()], JudgeOptions())
    assert judged.tokens == len(model.tokenize(QUESTION, STEPS).ids) > 20
    assert not judged.truncated
    np.testing.assert_array_equal(judged.score.steps, model.score([episode()])[0].steps)
    with pytest.raises(ConfigError, match="no such options"):
        model.judge([episode()], JudgeOptions(nframes=3))


def test_what_cannot_be_read_is_a_failure_and_its_neighbours_are_not(known):
    family, model, _ = known
    control = {"qwen_prm": "<extra_0>", "rlhflow": "<|eot_id|>", "trl": "<|eos|>", "math_shepherd": "</s>"}
    bad = control.get(family.name, "<|endoftext|>")
    frames = Episode(id="f", task="?", frames=np.zeros((2, 4, 4, 3), np.uint8))
    scores = model.score([
        episode(), episode(steps=["x" * 400]), episode(steps=["a", f"b {bad} c"]), episode(f"a {bad}?"), frames,
        episode(steps=[]), episode(steps=["\ue000"]), episode(),
    ])  # fmt: skip
    reasons = [None if s.failure is None else s.failure.reason for s in scores]
    wanted = ["too_long", "control_token", "control_token", "no_text", "no_step", "control_token"]
    assert reasons == [None, *wanted, None]
    assert f"room for {family.room}" in scores[1].failure.detail
    assert scores[2].failure.detail.startswith("step 2 has the control token")
    np.testing.assert_array_equal(scores[0].steps, scores[7].steps)


def test_the_longest_solution_that_fits_is_read_whole(known):
    family, model, _ = known
    fits = max(n for n in range(10, 256) if len(model.form(QUESTION, ["x" * n]).ids) <= family.room)
    assert len(model.form(QUESTION, ["x" * fits]).ids) == family.room
    scores = model.score([episode(steps=["x" * fits]), episode(steps=["x" * (fits + 1)])])
    assert scores[0].failure is None
    assert scores[1].failure.reason == "too_long"


def test_a_probability_of_exactly_zero_keeps_its_place(tmp_path):
    for bias, value in (([200.0, 0.0], 0.0), ([0.0, 200.0], 1.0)):  # the card's example gives back no value at all
        Qwen(tmp_path / str(value), bias=bias)
        steps = load_adapter("qwen_prm", str(tmp_path / str(value)), 8).score([episode()])[0].steps
        assert steps.tolist() == [value] * 3


# from PRMTrainer.tokenize_row of TRL 1.12, with this tokenizer
TRL_TOKENIZER = byte_tokenizer(["Step 1: 3+5=8.\nStep 2: so 8*2=16.\n"] * 20, vocabulary_size=280)
TRL_STEPS = ("Step 1: 3+5=8.", "so 9\nthen", "")
TRL_IDS = [1, 24, 16, 26, 34, 36, 264, 267, 31, 269, 16, 26, 34, 29, 19, 204, 266, 226, 30, 204, 89, 77, 74, 83, 204]


@pytest.mark.parametrize(
    ("separator", "ids", "places"),
    [
        ("\n", [*TRL_IDS, 204], [15, 24, 25]),
        ("\n\n", [*TRL_IDS[:16], 204, *TRL_IDS[16:], 204, 204, 204], [16, 26, 28]),
    ],
)
def test_ids_and_places_of_trl_are_those_of_its_trainer(separator, ids, places, tmp_path):
    Trl(tmp_path, tokenizer=TRL_TOKENIZER, separator=separator)
    marked = load_adapter("trl", str(tmp_path), 1).tokenize("3+5=?", TRL_STEPS)
    assert marked.ids.tolist() == ids
    assert marked.ends_S.tolist() == places


def pieces(family, marked):
    """The text that a model reads, `|` behind each token whose output is read."""
    tokens = family.tokenizer.convert_ids_to_tokens(marked.ids.tolist())
    text = "".join(t + ("|" if i in marked.ends_S else "") for i, t in enumerate(tokens))
    text = re.sub(r"<0x(..)>", lambda byte: chr(int(byte[1], 16)), text)
    return text.replace("Ġ", " ").replace("Ċ", "/").replace("\n", "/")


FORMS = {
    "qwen_prm": "<|im_start|>system/Please reason step by step, and put your final answer within \\boxed{}.<|im_end|>/"
    "<|im_start|>user/2+2?<|im_end|>/<|im_start|>assistant/a+b<extra_0>|<extra_0>|c/d<extra_0>|<|im_end|>/",
    "math_shepherd": "<s>▁2+2?▁Step▁1:▁a+b▁ки|/Step▁2:▁▁ки|/Step▁3:▁c/d▁ки|",
    "rlhflow": "<|begin_of_text|><|start_header_id|>user<|end_header_id|>//2+2? a+b<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>//|+<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>//<|eot_id|><|start_header_id|>assistant<|end_header_id|>//|+<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>//c/d<|eot_id|><|start_header_id|>assistant<|end_header_id|>//|+<|eot_id|>",
    "skywork": "<|endoftext|>2+2?/a+b/|/|c/d/|",
    "trl": "<|bos|>2+2?a+b/|/|c/d/|",
    "implicit": "<|im_start|>user/2+2?<|im_end|>/"
    "<|im_start|>assistant/Step 1: a+b//|Step 2: //|Step 3: c/d<|im_end|>|/",
}


def test_the_text_of_each_form_with_an_empty_step_and_one_of_two_lines(known):
    family, model, _ = known
    marked = model.tokenize("2+2?", ["a+b\n\n", "\n", " c\nd \n\n"])
    assert pieces(family, marked) == FORMS[family.name]
    assert len(model.score([episode("2+2?", ["", "", ""])])[0].steps) == 3


def test_steps_that_are_numbered_already_stay_as_they_are(known):
    family, model, _ = known
    plain, numbered = (model.tokenize("q", steps).ids.tolist() for steps in (["a", "b"], ["Step 1: a", "Step 2: b"]))
    assert (plain == numbered) == (family.name in ("math_shepherd", "implicit"))


@pytest.mark.usefixtures("by_hand")
def test_math_shepherd_with_the_tokenizer_class_that_mistrals_are_saved_with(tmp_path):
    learnt = json.loads(mistral_tokenizer().backend_tokenizer.to_str())["model"]
    merges = [tuple(pair) for pair in learnt["merges"]]
    tokenizer = LlamaTokenizer(vocab=learnt["vocab"], merges=merges, add_bos_token=True)
    family = MathShepherd(tmp_path, tokenizer=tokenizer)
    model = load_adapter("math_shepherd", str(tmp_path), 4)
    question, steps = OTHERS[3]
    np.testing.assert_allclose(
        model.score([episode(question, steps)])[0].steps, by_prefix(family, question, steps), atol=2e-5
    )


def test_characters_that_a_tokenizer_does_not_know(tmp_path):
    Trl(tmp_path, tokenizer=characters())
    scores = load_adapter("trl", str(tmp_path), 4).score([episode(steps=["a"]), episode(steps=["a", "ü"])])
    assert scores[0].failure is None
    assert scores[1].failure.reason == "unknown_character"


def test_a_value_that_is_not_finite_is_a_failure(tmp_path, monkeypatch):
    Qwen(tmp_path)
    read = families.read_strictly

    def spoilt(*given):
        model = read(*given)
        model.score[2].bias[0] = float("nan")
        return model

    monkeypatch.setattr(families, "read_strictly", spoilt)
    assert load_adapter("qwen_prm", str(tmp_path), 4).score([episode()])[0].failure.reason == "non_finite"


@pytest.mark.parametrize(
    ("family", "given", "message"),
    [
        (Qwen, {"tokenizer": qwen_tokenizer(marker=False)}, "no token for '<extra_0>'"),
        (Qwen, {"tokenizer": byte_level(["<|endoftext|>", "<extra_0>"])}, "no chat template"),
        (Qwen, {"bias": [float("nan"), 0.0]}, r"its score\.2\.bias is not finite"),
        (Qwen, {"lacks": ["score.2.bias"]}, "lacks 1 weights, such as score.2.bias"),
        (Qwen, {"extra": ["v_head.summary.bias"]}, "1 weights of code in its folder .*such as v_head"),
        (MathShepherd, {"tokenizer": mistral_tokenizer(["a b c"] * 9)}, "no token for 'ки'"),
        (RLHFlow, {"tokenizer": byte_level(["<|eot_id|>"], eos="<|eot_id|>")}, "no chat template"),
        (Skywork, {"tokenizer": byte_level(["<|endoftext|>"], pad="<|endoftext|>")}, "no beginning-of-sequence"),
        (Skywork, {"lacks": ["v_head.summary.weight"]}, "lacks 1 weights, such as v_head.summary.weight"),
        (Trl, {"labels": 3}, "3 labels"),
        (Trl, {"tokenizer": characters(), "separator": "ü"}, "no token for the separator 'ü'"),
    ],
)
def test_a_folder_of_another_kind_is_refused(family, given, message, tmp_path):
    family(tmp_path, **given)
    with pytest.raises(CheckpointError, match=message):
        load_adapter(family.name, str(tmp_path), 1)


def test_families_do_not_read_each_others_folders(known):
    family, _, folder = known
    for name in ADAPTERS:
        # the mark of Math-Shepherd is a token of this byte-level tokenizer, behind a space; nothing tells them apart
        if name != family.name and (family.name, name) != ("rlhflow", "math_shepherd"):
            with pytest.raises(CheckpointError):
                load_adapter(name, str(folder), 1)
    with pytest.raises(ConfigError, match="at least 1") as refused:
        load_adapter(family.name, str(folder), 0)
    assert refused.value.key == "micro_batch_size"


def test_nothing_is_read_where_there_is_nothing(tmp_path):
    for name in ADAPTERS:
        with pytest.raises(CheckpointError):
            load_adapter(name, str(tmp_path / "nowhere"), 1)
    with pytest.raises(ConfigError, match="choose one of qwen_prm") as refused:
        load_adapter("orm", str(tmp_path), 1)
    assert refused.value.key == "adapter"


def test_an_implicit_model_needs_a_reference_with_the_same_tokens(tmp_path):
    Implicit(tmp_path)
    (tmp_path / "adapter.json").unlink()
    with pytest.raises(CheckpointError, match="the reference of the implicit"):
        load_adapter("implicit", str(tmp_path), 1)
    (tmp_path / "adapter.json").write_text('{"ref_path": "reference"}')
    characters().save_pretrained(tmp_path / "reference")
    with pytest.raises(CheckpointError, match="other ids than those of its reference"):
        load_adapter("implicit", str(tmp_path), 1)


@pytest.mark.usefixtures("by_hand")
def test_without_a_beta_it_is_that_of_the_cards(tmp_path):
    family = Implicit(tmp_path)
    (tmp_path / "adapter.json").write_text('{"ref_path": "reference"}')
    family.beta = 0.001
    steps = load_adapter("implicit", str(tmp_path), 1).score([episode()])[0].steps
    np.testing.assert_allclose(steps, by_prefix(family, QUESTION, STEPS), atol=1e-6)
    assert 0.4 < steps.min() < steps.max() < 0.6


def test_values_of_a_step_do_not_depend_on_what_follows(known):
    _, model, _ = known
    cut = {"implicit": 1}.get(model.info.name, 0)  # its last step carries the end of the sequence
    whole, other = (model.score([episode(steps=s)])[0].steps for s in (STEPS, (*STEPS[:2], "Something else.", "-")))
    np.testing.assert_allclose(whole[:2], other[:2], atol=2e-6)
    first = model.score([episode(steps=STEPS[: 2 + cut])])[0].steps
    np.testing.assert_allclose(whole[:2], first[:2], atol=2e-6)


@cases(
    ("config", "folder", "name"),
    [
        ({"architectures": ["Qwen2ForProcessRewardModel"]}, "x", "qwen_prm"),
        ({"architectures": ["Qwen2ForPrmModel"]}, "x", "skywork"),
        ({"architectures": ["Qwen2ForTokenClassification"]}, "x", "trl"),
        ({"architectures": ["LlamaForTokenClassification"], "id2label": {"0": "a", "1": "b", "2": "c"}}, "x", None),
        ({"architectures": ["MistralForCausalLM"]}, "peiyi9979/math-shepherd-mistral-7b-prm", "math_shepherd"),
        ({"architectures": ["LlamaForCausalLM"]}, "RLHFlow/Llama3.1-8B-PRM-Deepseek-Data", "rlhflow"),
        ({"architectures": ["LlamaForCausalLM"]}, "/models/Llama3.1-8B-PRM-Mistral-Data", "rlhflow"),
        ({"architectures": ["LlamaForCausalLM"]}, "RLHFlow/Llama3.1-8B-ORM-Deepseek-Data", None),
        ({"architectures": ["Qwen2ForCausalLM"]}, "PRIME-RL/EurusPRM-Stage2", "implicit"),
        ({"architectures": ["Qwen2ForCausalLM"], "_name_or_path": "PRIME-RL/EurusPRM-Stage1"}, "runs/x", "implicit"),
        ({"architectures": ["Qwen2ForCausalLM"]}, "Skywork/Skywork-o1-Open-PRM-Qwen-2.5-7B", "skywork"),
        ({"architectures": ["Qwen2ForCausalLM"]}, "Qwen/Qwen2.5-Math-7B-Instruct", None),
        ({}, "x", None),
    ],
)
def test_families_are_recognised(config, folder, name):
    assert recognise(config, folder) == name


def test_folders_are_recognised_by_what_their_trainers_leave(known):
    family, _, folder = known
    config = json.loads((folder / "config.json").read_text())
    told = recognise(config, "x") or adapter_of(str(folder))
    assert told == (None if family.name in ("math_shepherd", "rlhflow") else family.name)  # those are told by name


@pytest.mark.usefixtures("by_hand")
def test_the_one_door_to_reward_models_of_text_finds_the_family(known):
    family, model, folder = known
    named = family.name if family.name in ("math_shepherd", "rlhflow") else "auto"
    found = load_text_model(str(folder), adapter=named, micro_batch_size=2)
    np.testing.assert_allclose(found.score([episode()])[0].steps, model.score([episode()])[0].steps, atol=2e-6)


def test_what_a_folder_says_about_itself_must_fit(tmp_path):
    Trl(tmp_path)
    notes = tmp_path / "adapter.json"
    for said, message in (
        ('{"seperator": "x"}', "seperator"),
        ('{"adapter": "implicit"}', "names the adapter 'implicit', not 'trl'"),
        ('{"beta": 0.1}', "has no use for beta"),
        ('{"separator": ""}', "separator"),
        ("{", "cannot be read"),
        ("[]", r"adapter\.json"),
    ):
        notes.write_text(said)
        with pytest.raises(CheckpointError, match=message):
            load_adapter("trl", str(tmp_path), 1)
    notes.write_text('{"adapter": "trl"}')
    assert adapter_of(str(tmp_path)) == "trl"
    assert adapter_of("Qwen/Qwen2.5-Math-PRM-7B") is None
    assert load_adapter("trl", str(tmp_path), 1).info.name == "trl"
