"""Interfaces of RLinf and LeRobot 0.6 as read in their wheels, for contract tests where they cannot be installed.

rlinf 0.3.0: `rlinf/models/embodiment/reward/{__init__,base_reward_model}.py`, `rlinf/workers/reward/reward_worker.py`.
Its development version, of which only a description was at hand, registers other names (`buffered_vlm` instead of
`history_vlm`) and has the same base class.
lerobot 0.6.1: `lerobot/rewards/{pretrained,factory}.py`, `lerobot/configs/rewards.py`.
"""

import abc
import importlib
import sys
import types
from dataclasses import dataclass, field

import torch
from torch import nn


class Config(dict):
    """What is used of OmegaConf's DictConfig: `get`, keys as attributes, and keys that the worker adds."""

    def __setattr__(self, name, value):
        self[name] = value


def rlinf_modules(version):
    class BaseRewardModel(nn.Module, abc.ABC):
        def __init__(self, cfg):
            super().__init__()
            self.cfg = cfg

        @abc.abstractmethod
        def forward(self, input_data, labels=None): ...

        @abc.abstractmethod
        def compute_reward(self, observations): ...

    names = ["resnet", "vlm", "history_vlm" if version == "0.3.0" else "buffered_vlm"]
    registry = dict.fromkeys(names)
    package = "rlinf.models.embodiment.reward"
    return {
        **{name: {} for name in ("rlinf", "rlinf.models", "rlinf.models.embodiment")},
        package: {"reward_model_registry": registry, "BaseRewardModel": BaseRewardModel},
        f"{package}.base_reward_model": {"BaseRewardModel": BaseRewardModel},
    }


def rlinf_worker(registry, cfg, observations, num_envs):
    """What the reward worker does with a model: build it by its type, move it, and ask for rewards as (B, 1)."""
    cfg.num_envs = num_envs
    model = registry[cfg["model_type"]](cfg).to("cpu").eval()
    rewards = model.compute_reward(observations)
    if rewards.dim() == 1:
        rewards = rewards.unsqueeze(-1)
    return rewards.detach().cpu().contiguous()


def lerobot_modules():
    @dataclass
    class RewardModelConfig:
        input_features: dict = field(default_factory=dict)
        output_features: dict = field(default_factory=dict)
        device: str | None = None
        pretrained_path: str | None = None
        pretrained_revision: str | None = None
        push_to_hub: bool = False
        repo_id: str | None = None
        license: str | None = None
        tags: list[str] | None = None
        private: bool | None = None
        choices = {}

        @classmethod
        def register_subclass(cls, name):
            return lambda config: cls.choices.setdefault(name, config)

        @property
        def type(self):
            return next(name for name, config in self.choices.items() if config is type(self))

    class PreTrainedRewardModel(nn.Module, abc.ABC):
        config_class: None
        name: None

        def __init__(self, config, *inputs, **kwargs):
            super().__init__()
            if not isinstance(config, RewardModelConfig):
                raise ValueError("config")
            self.config = config

        def __init_subclass__(cls, **kwargs):
            super().__init_subclass__(**kwargs)
            for needed in ("config_class", "name"):
                if not getattr(cls, needed, None):
                    raise TypeError(needed)

        @abc.abstractmethod
        def compute_reward(self, batch): ...

        def forward(self, batch):
            raise NotImplementedError

        @property
        def is_trainable(self):
            return type(self).forward is not PreTrainedRewardModel.forward

    return {
        **{name: {} for name in ("lerobot", "lerobot.configs", "lerobot.rewards")},
        "lerobot.configs.rewards": {"RewardModelConfig": RewardModelConfig},
        "lerobot.rewards.pretrained": {"PreTrainedRewardModel": PreTrainedRewardModel},
    }


def lerobot_factory(config):
    """How `make_reward_model` finds a class that it does not know: by the name of the configuration's."""
    name = type(config).__name__
    assert name.endswith("Config")
    module = importlib.import_module(type(config).__module__.replace("configuration_", "modeling_"))
    model = getattr(module, name.removesuffix("Config") + "RewardModel")(config=config)
    model.to(config.device)
    assert isinstance(model, torch.nn.Module)
    return model


def install(monkeypatch, modules, ours):
    """Put recorded modules where imports find them, and import ours anew with them."""
    for name, contents in modules.items():
        module = types.ModuleType(name)
        module.__path__ = []
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
        if "." in name:
            parent, _, own = name.rpartition(".")
            setattr(sys.modules[parent], own, module)
    monkeypatch.delitem(sys.modules, ours, raising=False)
    module = importlib.import_module(ours)
    monkeypatch.setitem(sys.modules, ours, module)  # taken out again afterwards
    return module
