"""The table of layouts in docs/reading.md is what is tested, and has every layout that is promised."""

import runpy
from pathlib import Path

from layout_meanings import LAYOUTS
from layout_rows import REFUSED

DOCS = Path(__file__).parents[2] / "docs"
PROMISED = """HH-RLHF, SHP, UltraFeedback raw, UltraFeedback binarized, UltraFeedback of Argilla, HelpSteer2
preference, HelpSteer3, Skywork-Reward, Nectar, PKU-SafeRLHF, WebGPT, Chatbot Arena, Chatbot Arena
140k, LMSYS on Kaggle, MT-Bench human, AlpacaFarm, AlpacaEval, RewardBench, RewardBench 2,
M-RewardBench, RM-Bench, JudgeBench, PPE, PPE best of K, OASST, NeMo-RL preferences, OpenAI
preference fine-tuning, TRL, LLaMA-Factory Alpaca, LLaMA-Factory history, LLaMA-Factory ShareGPT,
axolotl, axolotl chat, ms-swift, ms-swift messages, distilabel, Argilla 2, Label Studio, Label
Studio JSON_MIN, KTO of TRL, KTO CSV, KTO of ms-swift, KTO of LLaMA-Factory, HelpSteer2,
BeaverTails, CJE, TRL steps, PRM800K, Math-Shepherd, ProcessBench, PRMBench, RLHFlow steps, RLHFlow
steps without numbers, solutions of guerdon, GSM8K, MATH, MATH-500, AIME, MMLU, MMLU-Pro, GPQA,
HumanEval, MBPP, LiveCodeBench, PRIME and verl, SimpleQA, OpenMathInstruct-2, IFEval, HealthBench,
Alpaca, Dolly, OpenAI fine-tuning, ShareGPT, verl, OpenRLHF, traces of prime-rl, traces of
verifiers, verifiers, inspect_ai, inspect_ai .eval, NeMo-Gym, NeMo-RL, Atropos, ART, SkyRL,
tau-bench, tau2-bench, SWE-smith, SWE-agent, lm-eval, reasoning-gym, Qwen2.5-Math, promptfoo,
Langfuse, Phoenix, LangSmith, W&B table, output of OpenAI's batches, Anthropic, ragas, single
judgments of MT-Bench, completions with rewards, rewards as a map, rewards as a list, LeRobot,
monitor of Stable-Baselines3, robomimic Minari, RLDS"""


def names_in_page():
    text = (DOCS / "reading.md").read_text(encoding="utf-8").partition("<!-- layouts -->")[2]
    lines = [line for line in text.splitlines() if line.startswith("| ")][1:]
    return [line.split("|")[1].strip() for line in lines]


def test_the_page_has_the_table_of_today():
    made = runpy.run_path(str(DOCS / "make_reading.py"))["page"]()
    assert made == (DOCS / "reading.md").read_text(encoding="utf-8"), "run python docs/make_reading.py"


def test_every_tested_layout_is_in_the_table():
    assert {layout.name for layout in LAYOUTS} | set(REFUSED) <= {*names_in_page()}


def test_every_promised_layout_is_in_the_table():
    there = [name.replace(",", "") for name in names_in_page()]
    promised = [" ".join(name.split()) for name in PROMISED.split(",")]
    assert [name for name in promised if not any(one.startswith(name) for one in there)] == []
