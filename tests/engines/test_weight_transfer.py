"""A broadcast of weights among threads of this process: the same bytes, and a reason where it fails."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import TCPStore

from guerdon.engines.ray_cluster import PlacedActor
from guerdon.engines.ray_collector import (
    Broadcast,
    Received,
    WeightReceiver,
    WeightSender,
    _Member,
    buckets,
    checksum,
    packed,
    unpack,
)
from guerdon.errors import ClusterError
from guerdon.settings.cluster import ClusterSettings
from tables import refuses

WEIGHTS = {
    "full": torch.randn(300, 7),
    "half": torch.randn(65).to(torch.bfloat16),
    "turned": torch.randn(4, 5, 6).permute(2, 0, 1),
    "single": torch.tensor(3.5, dtype=torch.float64),
    "choice": torch.tensor([2], dtype=torch.uint8),
    "flags": torch.tensor([True, False, True]),
    "nothing": torch.empty(0, 3),
}
LAYOUT = [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in WEIGHTS.items()]


@pytest.fixture
def store():
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def broadcast(store, number, group, *, size=3, timeout=60.0, bucket=1000):
    return Broadcast(number, group, size, "gloo", "127.0.0.1", store.port, timeout, LAYOUT, bucket)


def sent(member, order):
    member = member or _Member(order, 0, torch.device("cpu"))
    member.broadcast(WEIGHTS.values(), order)
    return member


def assert_received(receivers, number):
    for receiver in receivers:
        found = receiver.weights(Received(number))
        assert found.keys() == WEIGHTS.keys()
        for name, tensor in WEIGHTS.items():
            assert found[name].dtype == tensor.dtype
            assert torch.equal(found[name], tensor), name


def test_receivers_get_the_same_bytes_in_one_group_after_the_other(store):
    receivers = [WeightReceiver(), WeightReceiver()]
    member = None
    with ThreadPoolExecutor(2) as threads:
        for number, group in ((1, 1), (2, 1), (3, 2)):
            order = broadcast(store, number, group)
            found = threads.map(lambda k, order=order: receivers[k].receive(order, k + 1), range(2))
            member = sent(member if member is not None and member.group == group else None, order)
            assert list(found) == ["", ""]
            assert_received(receivers, number)
    with pytest.raises(ClusterError, match="has weights 3 and was asked to act by 2"):
        receivers[0].weights(Received(2))
    assert receivers[0].weights({"own": 1}) == {"own": 1}


def test_a_receiver_says_why_it_received_nothing_and_joins_the_next_group(store):
    """Only one of two receivers, and the sender, are in the second group: it waits for nobody else's failure."""
    receivers = [WeightReceiver(), WeightReceiver()]
    with ThreadPoolExecutor(2) as threads:
        order = broadcast(store, 1, 1, timeout=600.0)
        waiting = [threads.submit(one.receive, order, k + 1) for k, one in enumerate(receivers)]
        member = _Member(order, 0, torch.device("cpu"))
        store.set(order.failed, "one was lost")  # and nothing is sent
        assert all("one was lost" in one.result() or "another member" in one.result() for one in waiting)
        with pytest.raises(ClusterError):
            receivers[0].weights(Received(1))
        member.leave()
        order = broadcast(store, 2, 2, size=2)
        found = threads.submit(receivers[0].receive, order, 1)
        sent(None, order)
        assert found.result() == ""
    assert_received(receivers[:1], 2)


@given(
    st.lists(st.integers(0, 40), max_size=8), st.integers(1, 50), st.integers(0, 10**6), st.integers(1, 255)
)  # fmt: skip
def test_buckets_hold_all_bytes_and_notice_each_that_changes(sizes, size, place, change):
    tensors = [torch.randint(0, 256, (n,), dtype=torch.uint8) for n in sizes]
    arrived = [torch.zeros_like(tensor) for tensor in tensors]
    for parts, there in zip(buckets(tensors, size), buckets(arrived, size), strict=True):
        bucket = packed(parts, torch.device("cpu"))
        assert len(bucket) <= -(-size // 8) * 8 + 8
        bucket[place % len(bucket)] += change
        with pytest.raises(ClusterError, match="arrived altered"):
            unpack(bucket, there)
        assert not any(part.any() for part in there)
        bucket[place % len(bucket)] -= change
        unpack(bucket, there)
    assert all(torch.equal(a, b) for a, b in zip(tensors, arrived, strict=True))


def test_parts_that_change_places_have_another_checksum():
    words = torch.arange(3 * 2**20) // 2**20
    assert checksum(words) != checksum(words.flip(0))


def test_weights_that_arrive_altered_are_refused_and_the_next_ones_taken(store, monkeypatch):
    made, receiver = [], WeightReceiver()

    def altered(parts, device):
        made.append(packed(parts, device))
        if len(made) == 2:
            made[1][5] ^= 1
        return made[-1]

    monkeypatch.setattr("guerdon.engines.ray_collector.packed", altered)
    with ThreadPoolExecutor(1) as threads:
        for number, why in ((1, "a part of the weights arrived altered"), (2, "")):
            order = broadcast(store, number, number, size=2)
            found = threads.submit(receiver.receive, order, 1)
            try:
                sent(None, order)
            except ClusterError:  # the receiver has left before the last bucket
                assert number == 1
            assert why in found.result()
            if why:
                with pytest.raises(ClusterError, match="has weights 0 and was asked to act by 1"):
                    receiver.weights(Received(1))
    assert_received([receiver], 2)


def test_a_group_that_is_not_formed_in_time_is_given_up(store):
    assert WeightReceiver().receive(broadcast(store, 1, 1, timeout=0.2), 1)


@pytest.mark.parametrize(
    ("gpus", "wanted", "backend", "said"),
    [
        (["b", "c"], "auto", "nccl", ""),
        (["b", "c"], "collective", "nccl", ""),
        (["b", "b"], "auto", "", "several processes share a GPU"),
        (["a", "b"], "auto", "", "several processes share a GPU"),  # one with the learner
        (["b", None], "auto", "", "some collectors have no GPU"),
        (["b", "b"], "collective", "gloo", ""),
        ([None, None], "collective", "gloo", ""),
    ],
)
def test_nccl_is_for_processes_with_a_gpu_of_their_own(gpus, wanted, backend, said, monkeypatch, capfd):
    """The choice alone, with made-up GPUs; that of the learner is `a`."""
    monkeypatch.setattr("guerdon.engines.ray_collector.gpu_of", lambda device: "a")
    ray = SimpleNamespace(get=lambda calls, timeout: calls)
    settings = ClusterSettings(collectors=2, collector_gpus=0.5, weight_transfer=wanted)
    sender = WeightSender(ray, settings, torch.device("cuda"))
    actors = [PlacedActor(SimpleNamespace(gpu=SimpleNamespace(remote=lambda gpu=gpu: gpu)), None) for gpu in gpus]
    assert [sender._choose_backend(actors) for _ in range(2)] == [backend, backend]
    lines = [line for line in capfd.readouterr().err.splitlines() if "weights reach" in line]  # torch writes others
    assert len(lines) == bool(said), "said once"
    assert said in "".join(lines)


def test_a_time_limit_without_broadcasts_is_refused():
    with refuses("weight_timeout"):
        ClusterSettings(weight_transfer="object_store", weight_timeout=3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_nccl_sends_the_bytes_of_a_group_of_one(store):
    """All that one GPU shows: the group is formed with these options, sends, and can be left."""
    order = Broadcast(1, 1, 1, "nccl", "127.0.0.1", store.port, 60.0, LAYOUT, 1000)
    member = _Member(order, 0, torch.device("cuda", torch.cuda.current_device()))
    member.broadcast(WEIGHTS.values(), order)
    member.leave()
