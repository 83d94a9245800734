"""A pretended GPU: the suites find tensors on the wrong device on a machine that has none.

Everything is computed on the CPU, but every storage carries a mark of the device where it would lie, and `Misplaced` is
raised where CUDA would refuse: operands on two devices (also in backward passes and in optimisers), `.numpy()` of a
tensor on a GPU, a generator of the CPU for numbers of a GPU. Threads that start inside pretend, too.

    pytest -p pretend_cuda --pretend-cuda tests/rl/test_text_side.py
    with pretend_cuda.pretended(gpus=2): ...

A test may mix devices itself, to compare with what it computes by hand: the innermost code of guerdon's or of the tests
decides. With `--pretend-cuda-strict` it may not, and the GPU computes in bfloat16 where models do so by default: what
passes then should pass on a real GPU. Not covered: kernels, TF32, memory, streams, C++ that never meets Python,
processes that start.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.utils.checkpoint
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

CPU = torch.device("cpu")
ANYWHERE = torch.device("meta")
"""Made inside an operator, from no tensor: it is where that operator works."""
_MARK = "pretended_device"
_CROSSING = {"aten::copy_", "aten::_to_copy"}
_INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index"}
_NEW = ("tensor", "as_tensor", "new_tensor", "asarray")  # which fill tensors unseen by the dispatcher
_STRICT = ("_fused_", "aten::mm", "aten::addmm", "aten::bmm", "aten::gather", "aten::cat")  # numbers on the CPU, too

_TESTS_MIX = True


class Misplaced(AssertionError):
    """CUDA would have refused this, with a RuntimeError; no `except RuntimeError` may hide it here."""


def device_of(tensor: torch.Tensor) -> torch.device:
    """Where a tensor would lie."""
    return getattr(_storage(tensor), _MARK, CPU)


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    with torch._C.DisableTorchFunction():
        return tensor.untyped_storage()


def _mark(tree: object, device: torch.device) -> None:
    for tensor in _tensors(tree):
        setattr(_storage(tensor), _MARK, device)


def _tensors(*trees: object) -> list[torch.Tensor]:
    """The tensors that have a storage."""
    with torch._C.DisableTorchFunction():
        found = [leaf for leaf in tree_leaves(trees) if isinstance(leaf, torch.Tensor)]
        return [t for t in found if t.layout is torch.strided and t.device.type == "cpu"]


def _refuse(why: str) -> None:
    frame = sys._getframe(1)
    while frame is not None:
        file, frame = frame.f_code.co_filename, frame.f_back
        if "/site-packages/" in file or file == __file__:
            continue
        if "/tests/" in file and _TESTS_MIX:
            return
        if "/guerdon/" in file:
            break
    raise Misplaced(why)


class _Operators(TorchDispatchMode):
    """What the dispatcher sees: every operator, those of backward passes and optimisers included."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name, given = func._schema.name, _tensors(args, kwargs)
        at = self._together(name, given, args)
        before = {_storage(t)._cdata for t in given}
        if name == "aten::histc" and not args[0].is_floating_point():  # which CUDA has for integers, too
            out = func(args[0].float(), *args[1:], **kwargs).to(args[0].dtype)
        else:
            out = func(*args, **kwargs)
        if name == "aten::copy_":
            return out
        for tensor in _tensors(out):
            inside = _storage(tensor)._cdata in before
            if not inside or (at != ANYWHERE and device_of(tensor) == ANYWHERE):
                _mark(tensor, at)
        return out

    @staticmethod
    def _together(name: str, given: list[torch.Tensor], args: tuple) -> torch.device:
        """The device of an operator."""
        if name in _CROSSING:
            return device_of(given[-1]) if given else ANYWHERE
        if not given:
            return ANYWHERE
        counted = given
        if name in _INDEXING and device_of(given[0]).type == "cuda":
            indices = {id(t) for t in _tensors(args[1])}  # those on the CPU are moved
            counted = [t for t in given if id(t) not in indices or device_of(t) != CPU]
        strict = name.split("::")[1].startswith(_STRICT) or name in _STRICT
        places = {
            place for t in counted if (place := device_of(t)) != ANYWHERE and (t.ndim or place != CPU or strict)
        }  # fmt: skip
        if len(places) > 1:
            shapes = ", ".join(f"{tuple(t.shape)} on {device_of(t)}" for t in counted)
            _refuse(f"{name}: expected all tensors on the same device, found {shapes}")
        gpus = [place for place in places if place.type == "cuda"]
        return gpus[0] if gpus else CPU if any(device_of(t) == CPU for t in counted) else ANYWHERE


class _Calls(TorchFunctionMode):
    """What Python code asks for: devices, numpy arrays, random numbers."""

    def __init__(self, current: torch.device) -> None:
        super().__init__()
        self._current = current

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if name == "_parse_to":  # of `Module.to`, which moves its tensors one by one
            return func(*args, **kwargs)
        if name == "__get__" and args:
            return self._attribute(func, args)
        first = args[0] if args and _tensors(args[0]) and isinstance(args[0], torch.Tensor) else None
        if first is not None and name in ("numpy", "__array__") and device_of(first).type == "cuda":
            _refuse("can't convert a tensor on cuda to numpy: call .cpu() first")
        if first is not None and name in ("to", "cpu", "cuda"):
            return self._moved(func, name, args, kwargs)
        if first is not None and name == "get_device":
            return -1 if device_of(first) == CPU else device_of(first).index
        if name == "pin_memory":
            return first
        asked = self._asked(args, kwargs)
        generator = kwargs.get("generator")
        at = asked if asked is not None else CPU if first is None else device_of(first)
        if generator is not None and at.type != generator.device.type:
            _refuse(f"{name}: expected a generator of {at}, found one of {generator.device}")
        if asked is not None:
            args, kwargs = self._on_cpu(args, kwargs)
        out = func(*args, **kwargs)
        if asked is not None and asked.type in ("cpu", "cuda"):
            shared = {_storage(t)._cdata for t in _tensors(args)}
            if any(_storage(t)._cdata in shared and device_of(t) != asked for t in _tensors(out)):
                out = out.clone()
            _mark(out, asked)
        elif name in _NEW or name == "__deepcopy__":
            _mark(out, device_of(first) if first is not None else CPU)
        elif not _tensors(args, kwargs):
            _mark([t for t in _tensors(out) if device_of(t) == ANYWHERE], CPU)
        return out

    def _attribute(self, func, args):
        with torch._C.DisableTorchFunction():
            value = func(*args)
            if not (isinstance(args[0], torch.Tensor) and _tensors(args[0])):
                return value
        if isinstance(value, torch.device):
            at = device_of(args[0])
            return CPU if at == ANYWHERE else at
        if func == torch.Tensor.is_cuda.__get__:
            return device_of(args[0]).type == "cuda"
        return value

    def _device(self, given) -> torch.device:
        found = torch.device("cuda", given) if isinstance(given, int) else torch.device(given)
        return self._current if found == torch.device("cuda") else found

    def _asked(self, args, kwargs) -> torch.device | None:
        """The device that a call names."""
        named = [kwargs.get("device"), *(a for a in args if isinstance(a, torch.device))]
        return next((self._device(d) for d in named if d is not None), None)

    def _on_cpu(self, args, kwargs):
        def plain(value):
            return CPU if isinstance(value, torch.device) and value.type == "cuda" else value

        kwargs = {k: plain(self._device(v)) if k == "device" and v is not None else v for k, v in kwargs.items()}
        return tuple(map(plain, args)), kwargs

    def _moved(self, func, name, args, kwargs):
        tensor = args[0]
        target = self._current if name == "cuda" else CPU if name == "cpu" else None
        if name == "cuda" and len(args) > 1:
            target = self._device(args[1])
        for value in (*args[1:], *kwargs.values()) if name == "to" else ():
            if isinstance(value, str | torch.device):
                target = self._device(value)
            elif isinstance(value, torch.Tensor):
                target = device_of(value)
        if target is not None and target.type not in ("cpu", "cuda"):
            return func(*args, **kwargs)
        before = device_of(tensor)
        if name == "to":
            rest, named = tree_map(lambda v: CPU if isinstance(v, str | torch.device) else v, (args[1:], kwargs))
            out = func(tensor, *rest, **named)
        else:
            out = tensor
        if target is None or target == before:
            return out
        out = out.clone() if _storage(out)._cdata == _storage(tensor)._cdata else out
        _mark(out, target)
        return out


class _Autocast(torch.autocast):
    """Of the CPU, whichever device is named."""

    def __init__(self, device_type, *args, **kwargs):
        super().__init__("cpu", *args, **kwargs)


class _Numbers:
    """The state of a GPU's generator: it changes where CUDA's would, but nothing is drawn from it."""

    def __init__(self) -> None:
        self.state = torch.zeros(16, dtype=torch.uint8)

    def manual_seed(self, seed: int) -> None:
        self.state = torch.tensor([*int(seed).to_bytes(16, "little", signed=True)], dtype=torch.uint8)

    def get(self, *_: object) -> torch.Tensor:
        return self.state.clone()

    def put(self, state: torch.Tensor, *_: object) -> None:
        self.state = state.clone()


@contextlib.contextmanager
def pretended(gpus: int = 1, *, strict: bool = False) -> Iterator[None]:
    """Inside the block there seem to be so many GPUs."""
    current, numbers = torch.device("cuda", 0), _Numbers()
    run = threading.Thread.run

    def modes() -> contextlib.ExitStack:
        stack = contextlib.ExitStack()
        stack.enter_context(_Calls(current))
        stack.enter_context(_Operators())
        return stack

    def in_calls(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with contextlib.nullcontext() if torch._C._len_torch_function_stack() else _Calls(current):
                return function(*args, **kwargs)

        return call

    def run_in_modes(thread: threading.Thread) -> None:
        with modes():
            run(thread)

    values = {
        "is_available": True, "device_count": gpus, "current_device": 0, "is_bf16_supported": strict,
        "get_device_capability": (7, 0),
        "is_initialized": False, "get_device_name": "a pretended GPU", "memory_allocated": 0, "memory_reserved": 0,
        "max_memory_allocated": 0, "_lazy_init": None, "synchronize": None, "set_device": None, "empty_cache": None,
        "reset_peak_memory_stats": None, "_is_in_bad_fork": False,
    }  # fmt: skip
    calls = {name: lambda *_, _value=value, **__: _value for name, value in values.items()}
    random = {
        "manual_seed": numbers.manual_seed, "manual_seed_all": numbers.manual_seed,
        "get_rng_state": numbers.get, "set_rng_state": numbers.put,
        "get_rng_state_all": lambda: [numbers.get()] * gpus, "set_rng_state_all": lambda states: numbers.put(states[0]),
    }  # fmt: skip
    patches = [(torch.cuda, name, call) for name, call in (calls | random).items()]
    patches.append((torch.cuda, "default_generators", (numbers,) * gpus))
    patches += [(torch.cuda.random, name, call) for name, call in random.items()]
    patches += [(torch, "autocast", _Autocast), (torch.amp, "autocast", _Autocast)]
    patches += [(threading.Thread, "run", run_in_modes), (sys.modules[__name__], "_TESTS_MIX", not strict)]
    # Autograd switches the mode of calls off, also for Python code that runs in a backward pass.
    backward, checkpoint = BackwardCFunction.apply, torch.utils.checkpoint.checkpoint
    patches.append((BackwardCFunction, "apply", lambda *args: in_calls(backward)(*args)))
    patches.append((torch.utils.checkpoint, "checkpoint", lambda f, *a, **k: checkpoint(in_calls(f), *a, **k)))
    with contextlib.suppress(ImportError):  # peft would have safetensors read onto the GPU, which C++ does
        import peft.peft_model

        patches += [(module, "infer_device", lambda: "cpu") for module in (peft.peft_model, peft.utils.save_and_load)]
    with contextlib.ExitStack() as stack:
        for target, name, value in patches:
            stack.enter_context(mock.patch.object(target, name, value))
        stack.enter_context(modes())
        yield


def pytest_addoption(parser):
    parser.addoption("--pretend-cuda", action="store_const", const="usual", help="as if there were a GPU")
    parser.addoption(
        "--pretend-cuda-strict", dest="pretend_cuda", action="store_const", const="strict",
        help="tests may not mix devices either, and bfloat16 is fast",
    )  # fmt: skip


def pytest_configure(config):
    if how := config.getoption("--pretend-cuda"):
        stack = contextlib.ExitStack()
        stack.enter_context(pretended(strict=how == "strict"))
        config.add_cleanup(stack.close)
