"""Processes that train together: a process group of `torch.distributed`, and who does what (weights: `sharding`).

`torchrun` starts the processes. `guerdon train` carries out the same training in all of them; of a run, the first
process carries out the loop, and the others follow its *collective* calls, in which each computes its part:

    with joined(), leading() as leads:          # does nothing without torchrun
        if leads:
            run(study)                          # the first process works, the others follow

    class Learner:
        @collective
        def update(self, rollout): ...          # called by the first process, carried out by all of them

Only while all processes carry out the same code are there `peers`: there, models that are built are sharded, batches
are dealt, and gradients are added up. Everywhere else each process is alone, and the functions here do nothing.
"""

from __future__ import annotations

import functools
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist

from guerdon.compute.devices import show_only, visible_gpus
from guerdon.errors import (
    ClusterError,
    ConfigError,
    FailedAloneError,
    GuerdonError,
    ProcessLostError,
    boundary,
    said_by,
)
from guerdon.processes.clock import counted
from guerdon.processes.launchers import refuse_other_launchers
from guerdon.processes.progress import fall_silent

if TYPE_CHECKING:  # importing FSDP is slow, and a single process does not need it
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

T = TypeVar("T")
_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
COLLECTIVE_TIMEOUT = 600.0  # seconds that a process may keep the others waiting
_BEATS = 4  # within that time: signs of life of the first process, which may collect for hours between its calls
_ALIKE = timedelta(seconds=10)  # within which processes that do the same meet the same error
_ALONE = "guerdon/failed_alone"  # in the store of the process group: the error that one process met alone


class _Group:
    """The processes that were started together.

    Attributes:
        rank, size: of this process, of the process group.
        limit: seconds that a process may keep the others waiting.
        parts: objects that every process has built, in the order in which all of them did.
        together: whether all processes now carry out the same code.
        leads: whether this one works while the others follow.
    """

    def __init__(self, limit: float) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.limit = limit
        self.parts: list[object] = []
        self.together = self.leads = False
        self._calls = dist.new_group(backend="gloo", timeout=timedelta(seconds=limit))
        self._store = dist.distributed_c10d._get_default_store()
        self._done = 0  # calls up to now
        self._lock = threading.RLock()  # one call at a time, whichever thread makes it

    @functools.cached_property
    def mesh(self) -> DeviceMesh:
        """All processes in a row."""
        from torch.distributed.device_mesh import init_device_mesh

        return init_device_mesh("cuda" if torch.cuda.is_available() else "cpu", (self.size,))

    def place(self, part: object) -> int | None:
        """Where a part is in `parts`; None for what only this process has."""
        return next((i for i, one in enumerate(self.parts) if one is part), None)

    def call(self, what: Callable[..., Any] | tuple[int, str], *args: Any, **options: Any) -> Any:
        """Carry out a function, or a method of a part, in all processes; the first one's result."""
        with self._lock, self.naming_the_lost():
            self._broadcast((what, args, options))
            try:
                return self._carry_out(what, args, options)
            except GuerdonError:
                self._store.set(f"guerdon/failed/{self._done}", "")
                raise

    def follow(self) -> None:
        """Carry out what the first process calls, until it has ended; with its exit status where that is not 0.

        Raises:
            ClusterError: another process has ended before its time.
            GuerdonError: an error that this process met alone; the first one is told, and ends, too.
        """
        if threading.current_thread() is threading.main_thread():  # a signal must end a process that waits
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        while True:
            with self.naming_the_lost():
                message = self._broadcast(None)
            if message is None:
                continue
            if isinstance(message, int):
                if message:
                    sys.exit(message)
                return
            try:
                with self.naming_the_lost(), counted(f"called {_name_of(message[0])}"):
                    self._carry_out(*message)
            except ClusterError:
                raise
            except GuerdonError as error:
                if not self._first_failed():
                    self._store.set(_ALONE, f"process {self.rank} alone met an error: {error}")
                    raise

    def end(self, status: int) -> None:
        """Let the others go."""
        with self.naming_the_lost():
            self._broadcast(status)

    def _first_failed(self) -> bool:
        """Whether the first process fails in the call of now, too: then it reports the error."""
        with self.naming_the_lost():
            try:
                self._store.wait([f"guerdon/failed/{self._done}"], _ALIKE)
            except dist.DistStoreError:  # it still computes, or waits for this process
                return False
        return True

    @contextmanager
    def signs_of_life(self) -> Iterator[None]:
        """Inside the block, the others hear from this process between its calls."""
        ended = threading.Event()

        def beat() -> None:
            with suppress(RuntimeError):  # the next call meets it, too
                while not ended.wait(self.limit / _BEATS):
                    with self._lock:
                        self._broadcast(None)

        thread = threading.Thread(target=beat, name="guerdon.compute.distributed", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    @contextmanager
    def naming_the_lost(self) -> Iterator[None]:
        """An error of the connection means that another process has ended, or hangs."""
        try:
            yield
        except GuerdonError:
            raise
        except RuntimeError as error:
            about = str(error)
            if not isinstance(error, dist.DistError) and "Connection" not in about and "gloo" not in about:
                raise
            if "imed out" in about or "timeout" in about:
                raise ProcessLostError(
                    f"a process that trains with this one does not answer: nothing was heard from it for "
                    f"{self.limit:g} s (runner.collective_timeout). End all of them and start them again with --resume"
                ) from error
            said = self._said_alone()
            raise (FailedAloneError if said else ProcessLostError)(
                f"a process that trains with this one has ended: {said or 'its own output says why'}. Start all of "
                f"them again with --resume ({said_by(error)[:100]})"
            ) from error

    def _said_alone(self) -> str:
        """The error that ended another process, where that could say it."""
        try:
            return str(self._store.get(_ALONE).decode()) if self._store.check([_ALONE]) else ""
        except RuntimeError:  # the store was in the first process
            return ""

    def _broadcast(self, message: Any) -> Any:
        box = [message]
        with counted("waiting"):
            dist.broadcast_object_list(box, src=0, group=self._calls)
        return box[0]

    def collected(self, value: Any) -> list[Any]:
        """What each process has, in all of them."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self._calls)
        return found

    def _carry_out(self, what: Callable[..., Any] | tuple[int, str], args: Any, options: Any) -> Any:
        self._done += 1
        work = getattr(self.parts[what[0]], what[1]) if isinstance(what, tuple) else what
        for part in self.parts:
            if hasattr(part, "let_go"):  # weights that were gathered for the first process
                part.let_go()
        with _all_together(self):
            return work(*args, **options)


def _name_of(what: Callable[..., Any] | tuple[int, str]) -> str:
    """The name of a method or function that processes carry out."""
    return what[1] if isinstance(what, tuple) else what.__name__


_group: _Group | None = None


@contextmanager
def _all_together(group: _Group, now: bool = True) -> Iterator[None]:
    before, group.together = group.together, now
    try:
        yield
    finally:
        group.together = before


# Joining.


def launched() -> int:
    """How many processes torchrun started; 1 without it.

    Raises:
        ConfigError: `WORLD_SIZE` is no number.
    """
    given = os.environ.get("WORLD_SIZE", "1")
    if not given.isdecimal() or int(given) < 1:
        raise ConfigError(f"WORLD_SIZE is {given!r}, which is no number of processes: unset it, or use torchrun")
    return int(given)


def is_first() -> bool:
    """Whether this is the first of the processes that were started together, the one that writes."""
    return launched() == 1 or int(os.environ.get("RANK", "0")) == 0


@contextmanager
def joined(limit: float = COLLECTIVE_TIMEOUT) -> Iterator[None]:
    """Be one of the processes that torchrun started, for the time of the block; nothing without torchrun.

    Each process uses one GPU of its machine where there are GPUs, else the CPU.

    Args:
        limit: seconds that a process may keep the others waiting in a collective operation.

    Raises:
        ConfigError: there are fewer GPUs than processes on this machine, this version of torch is too old, or another
            program than torchrun started several processes.
        ProcessLostError: another process has ended before its time, or kept this one waiting for longer than `limit`.
    """
    if launched() == 1:
        refuse_other_launchers()
        yield
        return
    global _group
    from torch.distributed.fsdp import FSDPModule

    if not hasattr(FSDPModule, "reset_iter_state"):
        raise ConfigError(f"several processes need torch 2.13 or newer, and this is {torch.__version__}")
    if torch.cuda.device_count():  # `is_available` would initialise CUDA
        _use_own_gpu()
    with boundary(ClusterError, "the processes that torchrun started do not find each other"):
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=limit))
    _group = group = _Group(limit)
    if _group.rank:
        fall_silent()
    ended = False
    try:
        with group.naming_the_lost():
            yield
        ended = True
    finally:
        _group = None
        if ended or not torch.cuda.is_available():  # NCCL would wait for processes that are gone
            dist.destroy_process_group()


def _use_own_gpu() -> None:
    """Make the GPU of this process the only one that it sees; before CUDA is initialised."""
    own, gpus = int(os.environ.get("LOCAL_RANK", "0")), visible_gpus()
    if own >= len(gpus):
        raise ConfigError(f"this machine has {len(gpus)} GPU(s), and more processes: start one process per GPU")
    show_only(gpus[own])


@contextmanager
def unnoticed() -> Iterator[None]:
    """Without the variables of torchrun, for libraries that would split the work themselves."""
    hidden = {name: os.environ.pop(name) for name in _VARIABLES if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


# Who does what.


def peers() -> int:
    """How many processes carry out this code together; 1 where this one is alone."""
    return _group.size if _group is not None and _group.together else 1


def rank() -> int:
    """Which of the processes that were started together this one is; 0 where it is alone."""
    return 0 if _group is None else _group.rank


def collected(value: T) -> list[T]:
    """What each of the processes has that carry out this code together, the first one's first."""
    return [value] if _group is None or not _group.together else _group.collected(value)


def together() -> AbstractContextManager[None]:
    """All processes carry out this block, with the same data."""
    return nullcontext() if _group is None else _all_together(_group)


@contextmanager
def leading() -> Iterator[bool]:
    """True in the first process; False in the others, which have followed its collective calls to the end of its block.

    Where the block fails in the first process, the others end with the exit status of the error.
    """
    if _group is None or _group.leads:
        yield True
        return
    if _group.rank:
        _group.follow()
        yield False
        return
    _group.leads = True
    try:
        with _all_together(_group, False), _group.signs_of_life():
            yield True
    except ClusterError:
        raise  # there may be nobody to tell
    except GuerdonError as error:
        with suppress(ClusterError):  # of one that is gone already, with the same error
            _group.end(error.exit_code)
        raise
    finally:
        _group.leads = False
    _group.end(0)


def led(work: Callable[[], T]) -> T | None:
    """The result of work in the first process; None in the others. See `leading`."""
    with leading() as leads:
        return work() if leads else None


def mesh() -> DeviceMesh:
    """All processes in a row; only where there are `peers`."""
    assert _group is not None
    return _group.mesh


def check_device(device: torch.device) -> None:
    """Refuse the CPU where each of several processes has a GPU, by which they send weights.

    Raises:
        ConfigError: that is so.
    """
    if peers() > 1 and device.type == "cpu" and torch.cuda.is_available():
        raise ConfigError.about(
            "policy.device", ": the processes that torchrun starts use a GPU each; hide them, or set it to auto"
        )


def check_offload(settings: Any, learners: int) -> None:
    """Refuse a model that is offloaded and not sharded.

    Args:
        settings: of a model, with or without `cpu_offload`.
        learners: processes that train it.

    Raises:
        ConfigError: `cpu_offload` is set, and there is one.
    """
    if learners == 1 and getattr(settings, "cpu_offload", False):
        raise ConfigError(
            "cpu_offload would do nothing with one learner: start several (docs/distributed.md), or leave it out",
            key="cpu_offload",
        )


def register(part: object) -> None:
    """Let collective calls find an object that every process builds."""
    if _group is not None and _group.together:
        _group.parts.append(part)


def everywhere(function: Callable[..., T], *args: Any, **options: Any) -> T:
    """The result of a function of a module that all processes carry out; called by the first, or by all together."""
    if _group is None or _group.together:
        return function(*args, **options)
    return _group.call(function, *args, **options)  # type: ignore[no-any-return]


Method = TypeVar("Method", bound=Callable[..., Any])


def collective(method: Method) -> Method:
    """A method that, called in the first process, is carried out in all of them, where all have built the object."""

    @functools.wraps(method)
    def called(self: Any, *args: Any, **options: Any) -> Any:
        place = None if _group is None or _group.together else _group.place(self)
        if _group is None or place is None:
            return method(self, *args, **options)
        return _group.call((place, method.__name__), *args, **options)

    return called  # type: ignore[return-value]


class Held(dict[str, Tensor]):
    """Tensors that only the first process holds: in the others they have shapes and no values."""

    def __reduce__(self) -> Any:
        return dict, ({name: tensor.to("meta") for name, tensor in self.items()},)


# Work in parts.


def even(rows: int, size: int | None) -> int:
    """Rows at a time: at most `size`, and no more than an even share of each process."""
    share = max(1, -(-rows // peers()))
    return share if size is None else min(size, share)


def dealt(parts: Iterable[T]) -> Iterator[tuple[T, bool]]:
    """The parts of this process: every n-th of n processes.

    All processes get equally many, so that they meet in every collective operation: one that has no more gets the
    first part again, with False: it does not count.
    """
    every, size = list(parts), peers()
    for start in range(0, len(every), size):
        own = start + (_group.rank if _group is not None and size > 1 else 0)
        yield (every[own], True) if own < len(every) else (every[0], False)


def total(tensor: Tensor) -> Tensor:
    """The sum over the processes, in place."""
    if peers() > 1:
        with counted("waiting"):
            dist.all_reduce(tensor)
    return tensor


def summed(numbers: Mapping[str, float]) -> dict[str, float]:
    """Sums over the processes, which have the same names."""
    if peers() == 1 or not numbers:
        return dict(numbers)
    found = total(torch.tensor(list(numbers.values()), dtype=torch.float64))
    return dict(zip(numbers, found.tolist(), strict=True))


def largest(number: float) -> float:
    """The largest over the processes."""
    if peers() == 1:
        return number
    found = torch.tensor(number, dtype=torch.float64)
    with counted("waiting"):
        dist.all_reduce(found, dist.ReduceOp.MAX)
    return float(found)


def sum_gradients(parameters: Iterable[Tensor]) -> None:
    """Add up the gradients of weights that every process holds; FSDP has added up those of sharded ones."""
    if peers() == 1:
        return
    found = [p.grad for p in parameters if p.grad is not None and not is_sharded(p.grad)]
    if not found:
        return
    flat = total(torch.cat([gradient.reshape(-1) for gradient in found]))
    for gradient, part in zip(found, torch.split(flat, [g.numel() for g in found]), strict=True):
        gradient.copy_(part.view_as(gradient))


def wait() -> None:
    """Until all processes are here."""
    if peers() > 1:
        with counted("waiting"):
            dist.barrier()


# Weights.


def is_sharded(value: Any) -> TypeGuard[DTensor]:
    """Whether a tensor is spread over the processes."""
    if "torch.distributed.tensor" not in sys.modules:
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(value, DTensor)


@torch.no_grad()
def gathered(tensor: Tensor) -> Tensor:
    """A copy of a whole tensor in memory of the CPU; of a sharded one, an empty tensor but in the first process."""
    if not is_sharded(tensor):
        return tensor.detach().cpu().clone()
    found = whole(tensor)
    assert _group is not None
    return torch.empty(0) if _group.rank else found.cpu().clone()


@torch.no_grad()
def whole(tensor: Tensor) -> Tensor:
    """A tensor, put together in every process where it is sharded, on the device of its parts."""
    return (tensor.full_tensor() if is_sharded(tensor) else tensor).detach()


@torch.no_grad()
def spread(value: Tensor, like: Tensor) -> Tensor:
    """The first process's `value`, laid out as `like`: sharded over the processes, or a copy in each of them.

    Args:
        value: of the shape of `like`; other processes than the first need no values.
        like: whose type, device and placement it gets.
    """
    assert _group is not None
    if _group.rank:
        own = torch.empty(like.shape, dtype=like.dtype, device=like.device)
    else:
        own = value.to(device=like.device, dtype=like.dtype).contiguous()
    if is_sharded(like):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(own, like.device_mesh, like.placements).to(like.device)
    dist.broadcast(own, src=0)
    return own


@torch.no_grad()
def put(parameter: Tensor, value: Tensor) -> None:
    """Set a parameter to a value; among several processes, to that of the first."""
    parameter.copy_(value if peers() == 1 else spread(value, parameter))


def keeps_whole_state(optimizer: torch.optim.Optimizer) -> None:
    """Let an optimiser give and take its state whole, as one process has it, however its parts are distributed.

    What another number of processes stored may lie otherwise in memory than the parameter does, such as with channels
    last; the fused optimiser walks both in the order of their memory.
    """

    def give(_: Any, state: dict[str, Any]) -> dict[str, Any]:
        slots = {
            i: {name: gathered(v) if is_sharded(v) else v for name, v in own.items()}
            for i, own in state["state"].items()
        }
        return {**state, "state": slots}

    def take(own: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        parameters = [p for group in own.param_groups for p in group["params"]]

        def laid_out(i: int, value: Any) -> Any:
            if not isinstance(value, Tensor) or is_sharded(value):
                return value
            alike = value.shape == parameters[i].shape
            if peers() == 1:
                return torch.empty_like(parameters[i], dtype=value.dtype).copy_(value) if alike else value
            return spread(value, parameters[i] if alike else torch.empty(value.shape, dtype=value.dtype))

        slots = {i: {name: laid_out(i, v) for name, v in own.items()} for i, own in state["state"].items()}
        return {**state, "state": slots}

    optimizer.register_state_dict_post_hook(give)
    optimizer.register_load_state_dict_pre_hook(take)


def alike(parameters: Sequence[nn.Parameter]) -> list[Any]:
    """The parameter groups of an optimiser, which takes sharded and whole tensors in different groups only."""
    kinds = itertools.groupby(parameters, key=lambda p: is_sharded(p))
    groups = [{"params": list(found)} for _, found in kinds]
    return groups if len(groups) > 1 else list(parameters)


def clip_gradients(parameters: Sequence[Tensor], max_norm: float) -> float:
    """Clip gradients to a norm, those of sharded and of whole weights together; the norm before clipping."""
    kinds = [[p for p in parameters if p.grad is not None and is_sharded(p.grad) == kind] for kind in (0, 1)]
    found: list[Tensor] = []
    for kind in kinds:
        if kind:
            norm = whole(torch.nn.utils.get_total_norm([p.grad for p in kind if p.grad is not None]))
            found.append(norm.to(found[0].device) if found else norm)  # offloaded weights are on the CPU
    if not found:
        return 0.0
    norm = torch.linalg.vector_norm(torch.stack(found))
    for kind in kinds:
        torch.nn.utils.clip_grads_with_norm_(kind, max_norm, norm)
    return float(norm)
