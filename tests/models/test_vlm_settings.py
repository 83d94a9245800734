"""`reward.model` for vision-language models: the guides' names keep their meaning, idle keys are refused."""

from pydantic import TypeAdapter

from guerdon.settings.reward import RewardSettings
from guerdon.settings.reward_models import MODEL_FORMS, REWARD_MODELS, RewardModelSettings, VLMModelSettings
from guerdon.settings.vlm import VLM_NAMES, TinyVLMSettings, VLMSettings
from tables import cases, refuses

ENDPOINT = {"base_url": "http://127.0.0.1:8000/v1", "model": "m"}
OPENAI = {"backend": "openai", "openai": ENDPOINT}


def model(**given):
    return TypeAdapter(RewardModelSettings).validate_python(given)


def test_the_names_of_the_first_guide():
    given = {
        "model_type": "QwenProcessRM", "prm_model_name_or_path": "MODEL/Qwen2-VL-2B-Instruct",
        "prm_checkpoint_path": "path/to/your/finetuned/prm",
    }  # fmt: skip
    settings = model(**given)
    assert settings.vlm.path == "MODEL/Qwen2-VL-2B-Instruct"
    assert settings.vlm.adapter == "path/to/your/finetuned/prm"
    assert settings.vlm.answer == "hard"  # it returns 0 or 1
    assert settings.origin == "MODEL/Qwen2-VL-2B-Instruct"
    again = model(**settings.model_dump(exclude_unset=True))
    assert again == settings
    dummy = model(model_type="DummyRM")
    assert (dummy.model_type, dummy.value) == ("DummyRM", 0.0)


def test_names_imply_what_they_say():
    qwen = model(model_type="qwen2_5_vl_vllm", vlm={"path": "p"}).vlm
    assert (qwen.backend, qwen.question, qwen.prompt_name) == ("vllm", "progress", "completion_percentage")
    primo = model(model_type="PRIMO-R1", vlm={"path": "p", "backend": "transformers"}).vlm
    assert primo.backend == "transformers"
    soft = model(model_type="QwenProcessRM", vlm={"path": "p", "question": "progress"}).vlm
    assert soft.answer is None


def test_the_template_that_is_named_is_asked():
    named = model(model_type="qwen_vl", vlm={"path": "p", "prompt": "completion_percentage_image"}).vlm
    assert named.prompt_name == "completion_percentage_image"


def test_every_name_can_be_loaded():
    for name in VLM_NAMES:
        assert MODEL_FORMS[name] is VLMModelSettings
    for name in MODEL_FORMS:
        assert callable(REWARD_MODELS.factory(name))


@cases(
    ("given", "key"),
    [
        ({"model_type": "qwen_vl"}, "model_type"),
        ({"model_type": "qwen_vl", "prm_model_name_or_path": "a", "vlm": {"path": "b"}}, "prm_model_name_or_path"),
        ({"model_type": "qwen_vl", "checkpoint_path": "a", "vlm": {"path": "b"}}, "vlm.path"),
        ({"model_type": "qwen_vl", "checkpoint_path": "a", "vlm": OPENAI}, "checkpoint_path"),
        ({"model_type": "qwen_vl", "checkpoint_path": "a", "arch": "resnet18"}, "arch"),
        ({"model_type": "qwen_vl", "checkpoint_path": "a", "update": "after"}, "update"),
        ({"model_type": "resnet", "checkpoint_path": "a", "vlm": {}}, "vlm"),
        ({"model_type": "constant", "prm_model_name_or_path": "x"}, "prm_model_name_or_path"),
        ({"model_type": "primo_r1", "vlm": {"path": "a", "question": "completed"}}, "vlm.question"),
        ({"model_type": "qwen_vl", "vlm": {"backend": "openai"}}, "backend"),
        ({"model_type": "qwen_vl", "vlm": {"path": "a", "openai": ENDPOINT}}, "backend"),
        ({"model_type": "qwen_vl", "vlm": {**OPENAI, "path": "a"}}, "path"),
        ({"model_type": "qwen_vl", "vlm": {"path": "a", "vllm": {}}}, "vllm"),
        ({"model_type": "qwen_vl", "vlm": {"path": "a", "backend": "vllm", "batch_size": 2}}, "batch_size"),
        (
            {"model_type": "qwen_vl", "vlm": {"path": "a", "checkpoint_generation": True}},
            "vlm.checkpoint_generation",
        ),
        ({"model_type": "primo_r1", "vlm": {"path": "a", "top_p": 0.9}}, "top_p"),
        ({"model_type": "qwen_vl", "vlm": {**OPENAI, "openai": {**ENDPOINT, "base_url": "x:1"}}}, "base_url"),
        ({"model_type": "qwen_vl", "vlm": {"path": "a", "nframes": 129}}, "nframes"),
        ({"model_type": "qwen_vl", "vlm": {"path": "a", "max_pixels": 783}}, "max_pixels"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(given, key):
    with refuses(key):
        model(**given)


def test_one_model_form_names_the_source():
    reward = RewardSettings(use_reward_model=True, model={"model_type": "PRIMO-R1", "vlm": {"path": "p"}})
    assert list(reward.sources) == ["PRIMO-R1"]


def test_defaults_are_those_of_the_reward_servers():
    settings = VLMSettings(path="p")
    assert (settings.nframes, settings.max_pixels, settings.score_mode, settings.fps) == (16, 200704, "auto", 4.0)
    with refuses("hidden_size"):
        TinyVLMSettings(hidden_size=40)
