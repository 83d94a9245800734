"""Encoders as reward models of preferences: transformers' own values of what their tokenizers make of a pair."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import WordLevel
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    DebertaV2Config,
    DistilBertConfig,
    ElectraConfig,
    LlamaConfig,
    LlamaForSequenceClassification,
    ModernBertConfig,
    PreTrainedTokenizerFast,
    RobertaConfig,
)

from guerdon.errors import CheckpointError, ConfigError
from guerdon.models.constant import ConstantModel
from guerdon.models.explained_score import ExplainedScore, JudgeOptions, judge
from guerdon.models.load import load_reward_model
from guerdon.models.text.pair_form import PairForm, is_encoder
from guerdon.models.text.sequence_classifier import SequenceClassifier
from guerdon.models.text.text_load import load_text_model
from guerdon.settings.study import Study
from guerdon.train import preferences
from guerdon.train.text import start_model, train_text_model
from guerdon.types import Episode
from tables import sample

torch.set_num_threads(1)
WORDS = ["good", "bad", "what", "is", "it", "?", ".", "very", "a", "b", ":", "user", "assistant", "system", "say"]
BODY = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "num_hidden_layers": 2}
FAMILIES = {
    "bert": lambda n: BertConfig(vocab_size=n, max_position_embeddings=40, pad_token_id=0, **BODY),
    "roberta": lambda n: RobertaConfig(
        vocab_size=n, max_position_embeddings=40, pad_token_id=0, type_vocab_size=1, **BODY
    ),
    "deberta": lambda n: DebertaV2Config(
        vocab_size=n, max_position_embeddings=40, pad_token_id=0, type_vocab_size=0, relative_attention=True,
        position_buckets=8, norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type=["p2c", "c2p"],
        position_biased_input=False, pooler_hidden_size=16, **BODY,
    ),
    "deberta with types": lambda n: DebertaV2Config(
        vocab_size=n, max_position_embeddings=40, pad_token_id=0, type_vocab_size=2, pooler_hidden_size=16, **BODY
    ),
    "modernbert": lambda n: ModernBertConfig(
        vocab_size=n, max_position_embeddings=40, pad_token_id=0, cls_token_id=1, sep_token_id=2, bos_token_id=1,
        eos_token_id=2, reference_compile=False, **BODY,
    ),
    "electra": lambda n: ElectraConfig(
        vocab_size=n, max_position_embeddings=40, pad_token_id=0, embedding_size=16, **BODY
    ),
    "distilbert": lambda n: DistilBertConfig(
        vocab_size=n, max_position_embeddings=40, pad_token_id=0, dim=16, n_heads=2, hidden_dim=32, n_layers=2
    ),
}  # fmt: skip
TYPED = ("bert", "deberta with types", "electra")


def tokenizer_of(family):
    """A tokenizer of words that joins pairs as the family's own does."""
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    inner = Tokenizer(WordLevel({word: k for k, word in enumerate([*special, *WORDS])}, unk_token="[UNK]"))
    inner.normalizer = normalizers.Lowercase()
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    middle = "[SEP] [SEP]" if family == "roberta" else "[SEP]"
    second = 0 if family == "roberta" else 1
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair=f"[CLS] $A {middle} $B:{second} [SEP]:{second}",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )  # fmt: skip
    names = ["input_ids", *(["token_type_ids"] if family in TYPED else []), "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]",
        model_input_names=names,
    )  # fmt: skip


def written(folder, family, kind=AutoModelForSequenceClassification, labels=1):
    tokenizer = tokenizer_of(family)
    config = FAMILIES[family](len(tokenizer))
    config.num_labels, config.initializer_range = labels, 0.1
    torch.manual_seed(0)
    kind.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def episodes_of(pairs):
    return [Episode(id=f"e{k}", task=question, texts=(answer,)) for k, (question, answer) in enumerate(pairs)]


PAIRS = [("what is it ?", "good"), ("a", "very very bad . it is bad ."), ("say it", ""), ("", "b"), ("it : a b", "a b")]


def by_transformers(folder, pairs):
    """Each pair by itself, by transformers' own tokenizer and classifier."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        return [model(**tokenizer([q], [a], return_tensors="pt")).logits[0].tolist() for q, a in pairs]


@pytest.mark.parametrize("labels", sample([1, 2], 1))
@pytest.mark.parametrize("family", FAMILIES)
def test_a_value_is_transformers_of_the_pair_alone(tmp_path, family, labels):
    folder = written(tmp_path, family, labels=labels)
    model = load_reward_model("text", folder)
    found = [one.total for one in model.score(episodes_of(PAIRS))]
    logits = by_transformers(folder, PAIRS)
    wanted = [row[0] if labels == 1 else row[1] - row[0] for row in logits]
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert np.ptp(wanted) > 1e-3
    alone = [model.score([one])[0].total for one in episodes_of(PAIRS)]
    np.testing.assert_allclose(found, alone, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_beyond_the_positions_is_a_failure(tmp_path, family):
    model = SequenceClassifier(written(tmp_path, family))
    room = 39 if family == "roberta" else 40
    special = 4 if family == "roberta" else 3
    fits, longer = (("a", " ".join(["good"] * (n - special - 1))) for n in (room, room + 1))
    found = model.score(episodes_of([fits, longer]))
    np.testing.assert_allclose(found[0].total, by_transformers(str(tmp_path), [fits])[0][0], atol=1e-6)
    assert found[1].failure.reason == "too_long"
    judged = judge(model, episodes_of([longer, ("a", "good"), fits]), JudgeOptions())
    assert [one.tokens for one in judged] == [None, special + 2, room]
    unknown = judge(ConstantModel(0.5), episodes_of([fits]), JudgeOptions())
    assert unknown[0].tokens is ExplainedScore.from_json(unknown[0].to_json()).tokens is None


def test_control_tokens_in_texts_are_text_or_a_failure(tmp_path):
    model = SequenceClassifier(written(tmp_path, "bert"))
    plain, forged = model.score(episodes_of([("a", "good"), ("a", "good [SEP] b")]))
    assert plain.failure is None
    assert forged.failure is not None  # the words of its tokenizer cannot spell the token as text


def test_types_of_a_pair_are_those_of_the_tokenizer():
    for family in FAMILIES:
        tokenizer = tokenizer_of(family)
        form = PairForm(tokenizer, turns=False)
        for question, answer in PAIRS:
            both = tokenizer([question], [answer])
            ids = form.ids(question, answer)
            assert [ids.tolist()] == both["input_ids"], family
            types = form.types(ids)
            assert (None if types is None else [types.tolist()]) == both.get("token_type_ids"), family


def test_a_tokenizer_whose_pairs_lack_a_text_needs_a_chat_template():
    tokenizer = tokenizer_of("bert")
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("b", "")  # a text of b alone has no token
    with pytest.raises(CheckpointError, match="has no chat template and does not say how it joins a question and a"):
        PairForm(tokenizer, turns=False)


SYSTEM = ({"role": "system", "content": "say a"}, {"role": "user", "content": "what ?"})


def test_a_published_encoder_reads_a_question_and_no_conversation(tmp_path):
    model = SequenceClassifier(written(tmp_path, "deberta"))
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    found = model.score(
        [
            Episode(id="1", task="what ?", texts=("good",), context=SYSTEM),
            Episode(id="2", task="what ?", texts=("good",), tools=(tool,)),
            Episode(id="3", task="what ?", texts=("good",)),
        ]
    )
    assert [None if one.failure is None else one.failure.reason for one in found] == [
        "unreadable_chat",
        "unreadable_chat",
        None,
    ]


def test_only_encoders_do_without_a_chat_template(tmp_path):
    tokenizer = tokenizer_of("bert")
    config = LlamaConfig(vocab_size=len(tokenizer), num_labels=1, pad_token_id=0, **BODY)
    LlamaForSequenceClassification(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert not is_encoder(config)
    with pytest.raises(CheckpointError, match="no chat template"):
        SequenceClassifier(str(tmp_path))


# training


def pairs_file(path, n=24):
    rows = []
    for k in range(n):
        word = WORDS[k % 5]
        rows.append({"prompt": f"what is {word} ?", "chosen": f"{word} is good", "rejected": f"{word} is bad"})
    context = [{"role": "system", "content": "say it"}, {"role": "user", "content": "what ?"}]
    for k in range(4):
        both = [[{"role": "assistant", "content": f"{WORDS[k]} {word}"}] for word in ("good", "bad")]
        rows.append({"prompt": context, "chosen": both[0], "rejected": both[1]})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def study_of(tmp_path, start, **keys):
    section = {
        "type": "preference", "path": start, "data_path": pairs_file(tmp_path / "pairs.jsonl"), "bf16": False,
        "save_dir": str(tmp_path / "rm"), "learning_rate": 3e-3, "batch_size": 8, "max_steps": 12, "val_split": 0.2,
        "device": "cpu", **keys,
    }  # fmt: skip
    return Study.model_validate({"train": {"rm": section}})


@pytest.mark.parametrize("family", sample(FAMILIES, "roberta", "deberta with types"))
def test_an_encoder_learns_preferences_and_transformers_reads_its_folder(tmp_path, family):
    start = written(tmp_path / "start", family, kind=AutoModelForMaskedLM)
    study = study_of(tmp_path, start)
    train_text_model(study.train["rm"], study)
    model = load_text_model(str(tmp_path / "rm"))
    assert (model.card.kind, model.card.form) == ("preference", "pair")
    both = episodes_of([(f"what is {word} ?", f"{word} is {end}") for word in WORDS[:5] for end in ("good", "bad")])
    values = [one.total for one in model.score(both)]
    assert np.mean(np.array(values[::2]) > np.array(values[1::2])) > 0.5
    folder = str(tmp_path / "rm" / "final_checkpoint")
    found = [one.total for one in model.score(episodes_of(PAIRS))]
    np.testing.assert_allclose(found, [row[0] for row in by_transformers(folder, PAIRS)], atol=1e-6)
    turns = model.score([Episode(id="1", task="what ?", texts=("good",), context=SYSTEM)])[0].total
    said = by_transformers(folder, [("system: say a\n\nuser: what ?", "good")])[0][0]
    assert turns == pytest.approx(said, abs=1e-6)


def test_a_gradient_step_is_that_of_transformers_own_forward_pass(tmp_path):
    start = written(tmp_path / "start", "deberta", labels=1)
    study = study_of(tmp_path, start)
    model = start_model(study.train["rm"], study.text_default, separator="")
    model.policy.dropout = False
    readings = [model.reading_of(one) for one in episodes_of(PAIRS)]
    own = model.lesson_logits(readings)
    np.testing.assert_allclose(own[:, 0].detach(), [row[0] for row in by_transformers(start, PAIRS)], atol=1e-6)
    own.sum().backward()
    theirs = AutoModelForSequenceClassification.from_pretrained(start, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(start)
    sum(theirs(**tokenizer([q], [a], return_tensors="pt")).logits.sum() for q, a in PAIRS).backward()
    wanted = {name: p.grad for name, p in theirs.named_parameters() if p.grad is not None}
    found = {name: p.grad for name, p in model.policy.named_parameters().items() if p.grad is not None}
    assert found.keys() == wanted.keys()
    for name, grad in wanted.items():
        torch.testing.assert_close(found[name], grad, atol=1e-5, rtol=1e-4)


def test_a_fresh_head_depends_on_the_seed_alone(tmp_path):
    start = written(tmp_path / "start", "bert", kind=AutoModel)

    def head(seed):
        study = study_of(tmp_path, start, seed=seed)
        return start_model(study.train["rm"], study.text_default, separator="").policy.base.model.classifier.weight

    torch.testing.assert_close(head(1), head(1), atol=0, rtol=0)
    assert not torch.equal(head(1), head(2))


def test_members_of_an_encoder_are_labels_of_its_head(tmp_path):
    start = written(tmp_path / "start", "deberta", kind=AutoModelForMaskedLM)
    study = study_of(tmp_path, start, members=3)
    train_text_model(study.train["rm"], study)
    found = load_text_model(str(tmp_path / "rm")).score(episodes_of(PAIRS[:2]))
    logits = np.array(by_transformers(str(tmp_path / "rm" / "final_checkpoint"), PAIRS[:2]))
    assert [one.total for one in found] == pytest.approx(logits.mean(axis=1).tolist(), abs=1e-6)
    assert [one.spread for one in found] == pytest.approx(logits.std(axis=1, ddof=1).tolist(), abs=1e-6)


@pytest.mark.parametrize(
    "keys", [{"lora": {}}, {"head_epochs": 1.0}, {"head_learning_rate": 0.1}, {"length_coef": 0.5}], ids=str
)
def test_keys_that_an_encoder_has_no_use_for_are_refused(tmp_path, keys):
    study = study_of(tmp_path, written(tmp_path / "start", "bert", kind=AutoModel), **keys)
    with pytest.raises(ConfigError, match="is an encoder") as refused:
        start_model(study.train["rm"], study.text_default, separator="")
    assert refused.value.key == next(iter(keys))


def test_a_training_that_was_cut_off_ends_with_the_same_weights(tmp_path, monkeypatch):
    start = written(tmp_path / "start", "deberta", kind=AutoModelForMaskedLM)
    whole, cut = (
        study_of(tmp_path, start, save_steps=2, max_steps=6, save_dir=str(tmp_path / name)) for name in ("whole", "cut")
    )
    train_text_model(whole.train["rm"], whole)
    original = preferences.PreferenceTrainer.loss_sum

    def dies(self, network, part):
        if self.state.global_step == 4:
            raise KeyboardInterrupt
        return original(self, network, part)

    monkeypatch.setattr(preferences.PreferenceTrainer, "loss_sum", dies)
    with pytest.raises(KeyboardInterrupt):
        train_text_model(cut.train["rm"], cut)
    monkeypatch.undo()
    train_text_model(cut.train["rm"], cut, resume=True)
    first, second = (load_file(tmp_path / name / "final_checkpoint" / "model.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(first[name], second[name]) for name in first)
