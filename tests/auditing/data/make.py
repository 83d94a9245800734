"""Makes the logs in this folder, each with the interpreter that has the package: `python make.py trl trl/`.

trl 1.16.0, inspect (inspect-ai 0.3.285), verifiers 0.4.0 (prime-rl's FileMonitor writes the same records), sb3
(stable-baselines3 2.9.0) and lerobot 0.6.1 run their packages. verl and openrlhf need the source file of the function
or class that writes the log as a third argument, and nothing else of their packages: ray_trainer.py of verl 0.9.1,
logging_utils.py of OpenRLHF 0.11.0. NeMo-Gym's rollouts.jsonl has the columns of its example_rollouts.jsonl.
"""

import ast
import json
import os
import random
import sys
from pathlib import Path


def trl(folder):
    import torch
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    words = [
        "<pad>",
        "<eos>",
        "<unk>",
        "what",
        "is",
        "plus",
        "one",
        "two",
        "three",
        "four",
        "?",
        ":",
        "user",
        "assistant",
    ]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] }} : {{ m['content'] }} {% endfor %}"
        "{% if add_generation_prompt %}assistant : {% endif %}"
    )
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
            "bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}  # fmt: skip
    for name, chat in (("plain", False), ("chat", True)):
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(Qwen2Config(vocab_size=len(words), num_key_value_heads=2, **size))
        asked = [
            f"what is {a} plus {b} ?" for a, b in (("one", "one"), ("one", "two"), ("two", "two"), ("one", "three"))
        ]
        data = [{"prompt": [{"role": "user", "content": q}] if chat else q} for q in asked]

        def text(completion):
            return completion if isinstance(completion, str) else completion[0]["content"]

        def short(completions, **_):
            return [1.0 - len(text(c).split()) / 8 for c in completions]

        def says_two(completions, **_):
            return [float("two" in text(c)) if i % 5 else None for i, c in enumerate(completions)]

        config = GRPOConfig(
            output_dir=f"{folder}/{name}", per_device_train_batch_size=4, num_generations=4, max_steps=3,
            gradient_accumulation_steps=2, num_iterations=2, max_completion_length=8, logging_steps=1,
            log_completions=True, report_to="none", use_cpu=True, bf16=False, save_strategy="no", seed=0,
        )  # fmt: skip
        GRPOTrainer(
            model=model, reward_funcs=[short, says_two], args=config, train_dataset=Dataset.from_list(data),
            processing_class=tokenizer,
        ).train()  # fmt: skip


def inspect(folder):
    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.log import write_eval_log
    from inspect_ai.model import ModelOutput
    from inspect_ai.scorer import Score, match, mean, scorer
    from inspect_ai.solver import solver

    @solver
    def answers():
        async def solve(state, generate):
            k = int(state.sample_id)
            if k == 2 and state.epoch == 2:
                raise RuntimeError("the sandbox is gone")
            said = f"I think the answer is {k if state.epoch != 2 else 9}"
            state.output = ModelOutput.from_content("mock/model", said, stop_reason="max_tokens" if k == 1 else "stop")
            state.messages.append(state.output.choices[0].message)
            return state

        return solve

    @scorer(metrics=[mean()])
    def length():
        async def score(state, target):
            return Score(value=len(state.output.completion) / 10)

        return score

    samples = [Sample(input=f"what is {k}+0?", target=str(k), id=k) for k in range(3)]
    task = Task(dataset=samples, solver=answers(), scorer=[length(), match()], epochs=2, fail_on_error=False)
    log = eval(task, model="none/none", log_dir=f"{folder}/made", display="none")[0]
    for sample in log.samples:
        sample.events = []
        if sample.error:  # it has the paths of this machine
            sample.error.traceback = sample.error.traceback_ansi = ""
    for form in ("eval", "json"):
        write_eval_log(log, f"{folder}/{form}/sums.{form}")


def verifiers(folder):
    from verifiers.v1.configs.agent import WireAgentConfig
    from verifiers.v1.episode import EnvInfo, Episode, GroupInfo, TrainRunInfo, TrainWorkInfo
    from verifiers.v1.graph import MessageNode
    from verifiers.v1.task import WireTaskData
    from verifiers.v1.trace import AgentInfo, Error, ModelCall, Trace, TraceTask
    from verifiers.v1.types import AssistantMessage, SystemMessage, ToolCall, ToolMessage, Usage, UserMessage

    def episode(k, step):
        asked = f"what is {k // 2}+1?"
        task = TraceTask(type="Sums", data=WireTaskData(idx=k // 2, prompt=asked))
        nodes = [MessageNode(message=SystemMessage(content="Answer.")),
                 MessageNode(parent=0, message=UserMessage(content=asked))]  # fmt: skip
        if k == 1:
            call = ToolCall(id="c", name="add", arguments='{"a": 1}')
            said = AssistantMessage(content="let me see", tool_calls=[call])
            nodes += [MessageNode(parent=1, message=said, sampled=True),
                      MessageNode(parent=2, message=ToolMessage(tool_call_id="c", content="1"))]  # fmt: skip
        credit = [0.5 - k % 2] * 2
        nodes.append(
            MessageNode(
                parent=len(nodes) - 1, message=AssistantMessage(content=f"it is {k // 2 + 1 + (k % 3 == 0)}"),
                sampled=True, token_ids=[1, 2, 3], mask=[False, True, True], logprobs=[-0.1, -0.2], advantages=credit,
            )
        )  # fmt: skip
        call = ModelCall(
            node=len(nodes) - 1, finish_reason="length" if k == 2 else "stop",
            usage=Usage(prompt_tokens=10, completion_tokens=4 + k),
        )  # fmt: skip
        agent = AgentInfo(config=WireAgentConfig.model_validate({"harness": {"id": "null"}}))
        trace = Trace(task=task, agent=agent, nodes=nodes, calls=[call], ok=k != 5, stop_condition="agent_completed")
        if k == 5:
            trace.rewards, trace.errors = {"correct": None}, [Error(type="JudgeError", message="gone")]
        else:
            trace.record_reward("correct", float(k % 3 != 0))
            trace.record_reward("form", 0.5, weight=0.2)
            trace.record_metric("num_turns", 1.0)
        run = TrainRunInfo(id="r", work=TrainWorkInfo(step=step))
        group = GroupInfo(id=f"g{step}-{k // 2}")
        return Episode(env=EnvInfo(id="sums"), task=task, traces=[trace], ok=trace.ok, group=group, run=run)

    for step in (9, 10):
        episodes = [episode(k, step) for k in range(6)]
        for kind, subset, those in (
            ("train", "all", episodes),
            ("train", "effective", episodes),
            ("eval", "all", episodes[:2]),
        ):
            path = Path(folder) / "rollouts" / f"step_{step}" / kind / subset / "traces.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps(e.to_record(), default=str) + "\n" for e in those))


def sb3(folder):
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.logger import configure

    worlds = make_vec_env("CartPole-v1", n_envs=2, seed=0, monitor_dir=folder)
    agent = PPO("MlpPolicy", worlds, n_steps=64, batch_size=64, seed=0, device="cpu")
    agent.set_logger(configure(folder, ["csv", "tensorboard"]))
    agent.learn(256)


def lerobot(folder):
    import numpy as np
    from lerobot.datasets import LeRobotDataset

    one = {"dtype": "float32", "shape": (1,), "names": None}
    features = {
        "observation.images.top": {"dtype": "image", "shape": (16, 16, 3), "names": ["height", "width", "channels"]},
        "observation.state": {**one, "shape": (2,)}, "action": one, "observation.contact": one, "next.reward": one,
        "next.done": {**one, "dtype": "bool"}, "next.success": {**one, "dtype": "bool"}, "sarm_reward": one,
    }  # fmt: skip
    data = LeRobotDataset.create("local/x", fps=10, features=features, root=Path(folder), use_videos=False)
    for e in range(3):
        for t in range(4 + e):
            last = t == 3 + e
            data.add_frame({
                "observation.images.top": np.full((16, 16, 3), 10 * t * (e > 0), np.uint8),
                "observation.state": np.array([e, t], np.float32), "action": np.array([t], np.float32),
                "observation.contact": np.array([-float(t > 1)], np.float32),
                "next.reward": np.array([float(last and e > 0)], np.float32), "next.done": np.array([last]),
                "next.success": np.array([last and e > 0]), "sarm_reward": np.array([t / 5], np.float32),
                "task": "pour" if e < 2 else "push",
            })  # fmt: skip
        data.save_episode()
    data.finalize()


def taken(source, kind, name, names):
    """A function or class of a source file, without the rest of it."""
    node = next(n for n in ast.walk(ast.parse(Path(source).read_text())) if isinstance(n, kind) and n.name == name)
    node.decorator_list = []
    exec(compile(ast.Module([node], []), source, "exec"), names)
    return names[name]


def verl(folder, source):
    write = taken(source, ast.FunctionDef, "_write_generations", {"os": os, "json": json})
    rng = random.Random(1)
    for step in (2, 10):
        asked = [f"user\nwhat is {step}+{k // 4}?\nassistant\n" for k in range(8)]
        acc = [rng.random() < 0.5 for _ in asked]
        said = [f"it is {step + k // 4 + (not right)}" + "!" * k for k, right in enumerate(acc)]
        more = {"acc": acc, "format": [0.1 * (k % 2) for k in range(8)], "pred": [t[-1] for t in said],
                "num_turns": [2] * 8, "request_id": [f"r{k}" for k in range(8)]}  # fmt: skip
        truths = [str(step + k // 4) for k in range(8)]
        score = [float(a) + f for a, f in zip(acc, more["format"], strict=True)]
        write(asked, said, truths, score, more, f"{folder}/rollout", step)
        write(asked[::4], said[::4], truths[::4], score[::4], {"reward": score[::4], "acc": acc[::4]},
              f"{folder}/validation", step)  # fmt: skip


def openrlhf(folder, source):
    from types import SimpleNamespace as Space
    from typing import Any

    logger = taken(source, ast.ClassDef, "TensorboardLogger", {"os": os, "Dict": dict, "Any": Any})
    log = logger(Space(logger=Space(tensorboard_dir=folder, wandb=Space(run_name="ppo"))))
    for k in range(1, 6):
        sample = (f"user\nq{k}\nassistant\nanswer {k}", k / 10)
        log.log_train(k, {"reward": k / 10, "kl": 0.1, "generated_samples": sample})
    log.close()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
