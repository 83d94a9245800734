"""Whatever class a folder declares for its tokenizer, ids are those of its `tokenizer.json`, and stay so when saved."""

import itertools
import json

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, PreTrainedTokenizerFast, Qwen2Config

from guerdon.errors import CheckpointError
from guerdon.policies.pretrained.reading import read_tokenizer
from tables import first, sample

CORPUS = ["Step 1: 3+5=8. The answer is 12345, isn't it?\n\nNo: \\boxed{6}  naïve ки"] * 20
TEXTS = (*CORPUS[:1], " leading", "12 345\n6\n\n\n7", "<|end|>x<|end|> y", "DON'T  stop", "")
CLASSES = (
    "Qwen2Tokenizer", "Qwen2TokenizerFast", "LlamaTokenizer", "LlamaTokenizerFast", "GPT2Tokenizer",
    "GPT2TokenizerFast", "GemmaTokenizer", "GemmaTokenizerFast", "GPTNeoXTokenizerFast", "CodeGenTokenizer",
    "CohereTokenizerFast", "BertTokenizer", "BertTokenizerFast", "T5TokenizerFast", "XLMRobertaTokenizerFast",
    "RobertaTokenizerFast", "PreTrainedTokenizerFast", "TokenizersBackend", None, "T5Tokenizer", "XLMRobertaTokenizer",
    "CodeLlamaTokenizer", "ByT5Tokenizer",
)  # fmt: skip


def byte_level():
    """Every digit on its own, no contractions: not as the classes build it."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\d|\s*\w+"), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet))
    return core


def pieces():
    """Spaces as pieces, bytes for what is unknown, as SentencePiece has it, with a beginning and an end."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=120))
    learnt = json.loads(core.to_str())["model"]
    vocabulary = {p: i for i, p in enumerate(["<unk>", *(f"<0x{i:02X}>" for i in range(256)), *learnt["vocab"]])}
    merges = [tuple(pair) for pair in learnt["merges"]]
    core = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return core


def words():
    core = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    core.normalizer = normalizers.Lowercase()
    core.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Digits(True)])
    core.decoder = decoders.WordPiece()
    core.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]"]))
    return core


def unigrams():
    core = Tokenizer(models.Unigram([("<unk>", 0.0), *((chr(i), -3.0) for i in range(33, 127)), ("▁", -2.0)], unk_id=0))
    core.normalizer = normalizers.NFKC()
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    return core


KINDS = {"bytes": byte_level, "pieces": pieces, "words": words, "unigrams": unigrams}
PAIRS = [(declared, kind) for kind in KINDS for declared in CLASSES]
EACH_CLASS = zip(CLASSES, itertools.cycle(KINDS), strict=False)


@pytest.mark.parametrize("config", first([LlamaConfig, Qwen2Config], 1))
@pytest.mark.parametrize(("declared", "kind"), sample(PAIRS, *EACH_CLASS, several=True))
def test_ids_are_those_of_the_file(declared, kind, config, tmp_path):
    core = KINDS[kind]()
    core.add_special_tokens(["<|begin|>", "<|end|>"])
    begin = core.token_to_id("<|begin|>")
    core.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", begin)])
    PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<|begin|>", eos_token="<|end|>").save_pretrained(tmp_path)
    config(hidden_size=8, num_attention_heads=2).save_pretrained(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    given = {k: v for k, v in json.loads(path.read_text()).items() if k != "tokenizer_class"}
    path.write_text(json.dumps(given | ({} if declared is None else {"tokenizer_class": declared})))
    wanted = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    found = read_tokenizer(str(tmp_path))
    found.save_pretrained(tmp_path / "again")
    for tokenizer in (found, read_tokenizer(str(tmp_path / "again"))):
        for text in TEXTS:
            for special in (False, True):
                ids = tokenizer(text, add_special_tokens=special)["input_ids"]
                assert ids == wanted.encode(text, add_special_tokens=special).ids, (text, special)
        assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|begin|>", "<|end|>")


@pytest.mark.parametrize("declared", ["GPT2Tokenizer", "Qwen2Tokenizer"])
def test_special_tokens_that_only_the_class_names_are_kept(declared, tmp_path):
    core = byte_level()
    core.add_special_tokens(["<|endoftext|>"])
    core.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": declared}))
    found = read_tokenizer(str(tmp_path))
    assert found("a12 b")["input_ids"] == core.encode("a12 b").ids
    assert found.eos_token_id == core.token_to_id("<|endoftext|>")
    assert len(found) == core.get_vocab_size()


@pytest.mark.hostile("models")
@pytest.mark.parametrize(
    ("declared", "file", "content", "message"),
    [
        (
            "LlamaTokenizer",
            "spiece.model",
            "",
            "special tokens only: .* vocabulary of its class Llama",
        ),
        ("LlamaTokenizer", "tekken.json", "{}", "cannot be read"),
        ("BertTokenizer", "vocab.txt", "a\nb\n", r"cannot be read: .*Missing \[UNK\]"),
    ],
)
def test_a_class_without_its_files_is_refused(declared, file, content, message, tmp_path):
    PreTrainedTokenizerFast(tokenizer_object=byte_level(), eos_token="<e>").save_pretrained(tmp_path)
    assert read_tokenizer(str(tmp_path)).encode("a")
    (tmp_path / "tokenizer.json").unlink()
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "tokenizer_class": declared}))
    (tmp_path / file).write_text(content)
    with pytest.raises(CheckpointError, match=message):
        read_tokenizer(str(tmp_path))


def test_a_vocabulary_in_other_files_is_read(tmp_path):
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level(), eos_token="<e>")
    tokenizer.save_pretrained(tmp_path)
    model = json.loads((tmp_path / "tokenizer.json").read_text())["model"]
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(map(" ".join, model["merges"])))
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "tokenizer_class": "GPT2Tokenizer"}))
    found = read_tokenizer(str(tmp_path))
    assert found.decode(found.encode(CORPUS[0])) == CORPUS[0]
