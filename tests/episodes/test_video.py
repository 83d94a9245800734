from __future__ import annotations

import struct
import sys
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from episode_samples import sample

from guerdon.episodes import images, video
from guerdon.episodes.index import load_index
from guerdon.episodes.layout import load_info
from guerdon.episodes.read import dataset_hash, frames_of, read_episodes, summarize
from guerdon.episodes.video import VideoWriter, count_frames, declared, decode_video
from guerdon.episodes.write import EpisodeWriter
from guerdon.errors import DataError, MissingDependencyError
from guerdon.serve.decode import decode_video as serve_video
from guerdon.settings.serve import MediaSettings
from tables import refuses

av = pytest.importorskip("av")

KEY = "observation.images.main"


def clip(length, *, height=32, width=48, level=0):
    """Frames whose grey value tells their number."""
    grey = ((level + 12 * np.arange(length)) % 256).astype(np.uint8)
    return np.broadcast_to(grey[:, None, None, None], (length, height, width, 3)).copy()


@pytest.mark.parametrize(("height", "width"), [(32, 48), (33, 47)])
def test_frames_come_back_close_and_in_place(tmp_path, height, width):
    path = tmp_path / "clip.mp4"
    frames = clip(20, height=height, width=width)
    with VideoWriter(path, height=height, width=width, fps=10) as writer:
        assert writer.add(frames[:13]) == (0, 1.3)
        assert writer.add(frames[13:]) == (1.3, 2.0)
    assert count_frames(path) == 20
    for rows in ([0], [19], [5, 6, 7], list(range(20)), [3, 17]):
        read = decode_video(path, np.array(rows) / 10, fps=10)
        assert read.shape == (len(rows), height, width, 3)
        assert np.abs(read.astype(int) - frames[rows]).max() <= 4


def test_a_file_without_pictures_is_refused(tmp_path):
    path = tmp_path / "sound.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=8000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    for read in (count_frames, lambda path: decode_video(path, np.array([0.0]), fps=10)):
        with pytest.raises(DataError, match="has no video stream"):
            read(path)


def test_times_without_a_frame_are_an_error(tmp_path):
    path = tmp_path / "clip.mp4"
    with VideoWriter(path, height=32, width=48, fps=10) as writer:
        writer.add(clip(5))
    with pytest.raises(DataError, match=r"no frame at 0\.900 s"):
        decode_video(path, np.array([0.9]), fps=10)
    with pytest.raises(DataError, match=r"no frame at 0\.250 s"):
        decode_video(path, np.array([0.25]), fps=20)


def test_bounds(tmp_path, monkeypatch):
    path = tmp_path / "clip.mp4"
    with VideoWriter(path, height=32, width=48, fps=10) as writer:
        writer.add(clip(5))
    monkeypatch.setattr(video, "MAX_PIXELS", 32 * 48 - 1)
    with pytest.raises(DataError, match="over 1535 pixels"):
        count_frames(path)
    monkeypatch.undo()
    monkeypatch.setattr(images, "MAX_EPISODE_BYTES", 1000)
    with pytest.raises(DataError, match="over the limit"):
        decode_video(path, np.zeros(1), fps=10)


@pytest.mark.hostile("media")
def test_only_mp4_is_opened(tmp_path):
    path = tmp_path / "clip.mp4"
    path.write_text("#EXTM3U\n#EXTINF:1,\nother.ts\n")
    with pytest.raises(DataError, match="cannot be decoded"):
        count_frames(path)


@pytest.fixture
def root(tmp_path):
    with EpisodeWriter(tmp_path, fps=10, flush_every=2, video=True) as writer:
        for number in range(4):
            writer.add(sample(number, frames=clip(4 + number, level=20 * number), length=4 + number))
    return tmp_path


def test_episodes_share_a_file_and_keep_their_frames(root):
    files = sorted(str(path.relative_to(root)) for path in root.rglob("*.mp4"))
    assert files == [f"videos/observation.images.main/chunk-000/file-00{i}.mp4" for i in range(2)]
    entries = load_index(root, load_info(root))[0]
    for number, episode in enumerate(read_episodes(root)):
        assert np.abs(episode.frames.astype(int) - clip(4 + number, level=20 * number)).max() <= 4
        np.testing.assert_array_equal(episode.actions, sample(number, length=4 + number).actions)
        assert np.array_equal(list(frames_of(root, entries[number], KEY)), episode.frames)
        assert np.array_equal(list(frames_of(root, entries[number], KEY, start=2)), episode.frames[2:])
    assert summarize(root).skipped == ()
    assert dataset_hash(root) == dataset_hash(root)


@pytest.mark.hostile("media")
@pytest.mark.parametrize("keep", [0, 0.5, 0.8])
def test_a_broken_video_costs_its_episodes_only(root, keep):
    path = root / "videos/observation.images.main/chunk-000/file-000.mp4"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    skipped = []
    assert [e.id for e in read_episodes(root, on_skip=skipped.append)] == ["episode-2", "episode-3"]
    assert [(part.path, part.episode) for part in skipped] == [(path, 0), (path, 1)]
    assert len(summarize(root).skipped) == 2
    assert len(list(read_episodes(root, with_frames=False))) == 4


def test_reopening_appends(root):
    with EpisodeWriter(root, fps=10, video=True) as writer:
        writer.add(sample(4, frames=clip(4)))
    assert len(list(read_episodes(root))) == 5
    with EpisodeWriter(root, fps=10) as writer, refuses("observation.images.main"):
        writer.add(sample(5, frames=clip(4)))


def test_a_missing_av_is_named_at_once(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingDependencyError, match="guerdon\\[video\\]"):
        EpisodeWriter(tmp_path, video=True)


@pytest.mark.hostile("media")
def test_corrupt_pictures_are_not_passed_on(tmp_path):
    path = tmp_path / "clip.mp4"
    with VideoWriter(path, height=32, width=48, fps=10) as writer:
        writer.add(np.random.default_rng(0).integers(0, 256, (6, 32, 48, 3), dtype=np.uint8))
    content = bytearray(path.read_bytes())
    start, stop = content.find(b"mdat") + 1500, content.find(b"moov") - 4
    content[start : start + (stop - start) // 2] = bytes((stop - start) // 2)
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"is corrupt|cannot be decoded"):
        decode_video(path, np.arange(6) / 10, fps=10)


def encoded(path, length, codec, options, muxer):
    """A clip of another encoder: (length, 64, 64, 3), grey values that tell the number of the frame."""
    import av

    with av.open(str(path), "w", options=muxer) as container:
        stream = container.add_stream(codec, rate=10, options=options)
        stream.height, stream.width, stream.pix_fmt = 64, 64, "yuv420p"
        for frame in clip(length, height=64, width=64, level=3):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return path


OPEN = "open-gop=1:keyint=12:min-keyint=12:b-adapt=0"
HEVC = f"log-level=none:lossless=1:pools=none:frame-threads=1:wpp=0:{OPEN}"


@pytest.mark.parametrize("muxer", [{}, {"use_editlist": "0"}, {"movflags": "frag_keyframe+empty_moov"}])
@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("libx264", {"qp": "4", "bf": "3", "x264-params": f"{OPEN}:bframes=3"}),  # qp 0 has no B frames
        ("libx264", {"qp": "0", "g": "250"}),
        ("libx265", {"x265-params": f"{HEVC}:bframes=4"}),
        ("libx265", {"x265-params": f"{HEVC}:keyint=25:bframes=16:b-pyramid=1"}),
        ("libx265", {"x265-params": HEVC.replace("open-gop=1", "open-gop=0")}),
    ],
)
def test_an_episode_may_begin_anywhere_in_the_file_of_any_encoder(tmp_path, codec, options, muxer):
    """A seek ends behind the target in 2 to 9 of the 31 starts of open groups.

    Compared with all frames decoded in order: x265 stores wrong pixels in about 1 of 75 clips.
    """
    import av

    path = encoded(tmp_path / "clip.mp4", 31, codec, options, muxer)
    with av.open(str(path)) as container:
        frames = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    means = frames.mean((1, 2, 3))
    assert len(frames) == 31
    assert np.abs(means[:, None] - means)[~np.eye(31, dtype=bool)].min() > 1  # every frame shows which one it is
    for start in range(31):
        read = decode_video(path, np.arange(start, min(start + 3, 31)) / 10, fps=10)
        np.testing.assert_array_equal(read, frames[start : start + 3])
    assert declared(path)[0] in (31, 0)


def change_rows(path, **columns):
    table = pq.read_table(path)
    for name, values in columns.items():
        at = table.column_names.index(name)
        table = table.set_column(at, name, pa.array(values, table.schema.field(name).type))
    pq.write_table(table, path)


IDENTITY = (1, 0, 0, 1)
TURNS = {  # a, b, c, d of a display matrix, and what it makes of an array
    IDENTITY: lambda x: x,
    (-1, 0, 0, 1): lambda x: x[:, ::-1],
    (1, 0, 0, -1): lambda x: x[::-1],
    (-1, 0, 0, -1): lambda x: np.rot90(x, 2),
    (0, 1, -1, 0): lambda x: np.rot90(x, -1),  # clockwise, as phones that are held upright write
    (0, -1, 1, 0): lambda x: np.rot90(x, 1),
    (0, 1, 1, 0): lambda x: x.swapaxes(0, 1),
    (0, -1, -1, 0): lambda x: np.rot90(x, 2).swapaxes(0, 1),
}


def set_matrix(path, a, b, c, d):
    """Change the display matrix in the header of the first track."""
    content = bytearray(path.read_bytes())
    at = content.index(struct.pack(">9i", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30), content.index(b"tkhd"))
    a, b, c, d = (round(value * 65536) for value in (a, b, c, d))
    content[at : at + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(content)


def both_ways(path, count, fps=10):
    """The frames as data sets and as the server read them."""
    read = decode_video(path, np.arange(count) / fps, fps=fps)
    with path.open("rb") as file:
        assert np.array_equal(serve_video(file, nframes=None, limits=MediaSettings()), read)
    return read


@pytest.mark.parametrize("matrix", sorted(TURNS))
def test_videos_are_turned_upright(tmp_path, matrix):
    path = tmp_path / "clip.mp4"
    frames = np.repeat(np.repeat(np.random.default_rng(1).integers(0, 256, (3, 2, 3, 1)), 16, 1), 16, 2)
    frames = np.repeat(frames, 3, axis=-1).astype(np.uint8)
    with VideoWriter(path, height=32, width=48, fps=10) as writer:
        writer.add(frames)
    plain = both_ways(path, 3)
    assert np.abs(plain.astype(int) - frames).mean() < 4
    set_matrix(path, *matrix)
    assert np.array_equal(both_ways(path, 3), np.stack([TURNS[matrix](frame) for frame in plain]))
    assert count_frames(path) == 3


@pytest.mark.parametrize("matrix", [(0.7, 0.7, -0.7, 0.7), (0, 0, 0, 0), (1, 0.5, 0, 1)])
def test_a_video_that_is_turned_by_another_angle_is_refused(tmp_path, matrix):
    path = tmp_path / "clip.mp4"
    with VideoWriter(path, height=32, width=48, fps=10) as writer:
        writer.add(clip(3))
    set_matrix(path, *matrix)
    with pytest.raises(DataError, match="not a multiple of 90 degrees"):
        decode_video(path, np.arange(3) / 10, fps=10)
    with path.open("rb") as file, pytest.raises(DataError, match="not a multiple of 90 degrees"):
        serve_video(file, nframes=2, limits=MediaSettings())


@pytest.mark.parametrize("start", [0, 1, 5, 11, 12, 20])
@pytest.mark.parametrize("name", ["cut.mp4", "cut.mov"])
def test_frames_before_the_start_of_a_cut_are_none(tmp_path, start, name):
    """As `ffmpeg -ss START -c copy`: from the key frame before on, and an edit list that says what is shown."""
    import av

    whole = encoded(tmp_path / "clip.mp4", 24, "libx264", {"qp": "0", "g": "12", "bf": "2"}, {})
    path, key = tmp_path / name, start // 12 * 12
    with av.open(str(whole)) as source, av.open(str(path), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        unit = source.streams.video[0].time_base
        for packet in source.demux(video=0):
            if packet.size and round(packet.pts * unit * 10) >= key:
                shift = round(start / 10 / unit)
                packet.pts, packet.dts, packet.stream = packet.pts - shift, packet.dts - shift, stream
                target.mux(packet)
    frames = clip(24, height=64, width=64, level=3)[start:]
    assert count_frames(path) == 24 - start
    assert np.abs(both_ways(path, 24 - start).astype(int) - frames).max() <= 4
    if start % 12:
        assert declared(path)[0] > count_frames(path)
    with path.open("rb") as file:
        sampled = serve_video(file, nframes=2, limits=MediaSettings())
    assert np.abs(sampled.astype(int) - frames[[0, -1]]).max() <= 4


@pytest.mark.parametrize("muxer", [{}, {"movflags": "frag_keyframe+empty_moov"}])
@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("libx264", {"qp": "4", "bf": "3", "x264-params": f"{OPEN}:bframes=3"}),  # qp 0 has no B frames
        ("libx265", {"x265-params": f"{HEVC}:bframes=3"}),
        ("libx265", {"x265-params": f"{HEVC.replace('open-gop=1', 'open-gop=0')}:bframes=3"}),
    ],
)
def test_frames_whose_references_a_cut_left_out_are_none(tmp_path, codec, options, muxer):
    """A cut at the second key frame of an open group begins with frames that are shown before it and refer back."""
    import av

    whole, path = encoded(tmp_path / "clip.mp4", 36, codec, options, {}), tmp_path / "cut.mp4"
    with av.open(str(whole)) as source:
        frames = list(source.decode(video=0))
        key = [index for index, frame in enumerate(frames) if frame.key_frame][1]
        shown = np.stack([frame.to_ndarray(format="rgb24") for frame in frames[key:]])
        source.seek(frames[key].pts, stream=source.streams.video[0])
        packets = [packet for packet in source.demux(video=0) if packet.size]
        before = sum(packet.pts < frames[key].pts for packet in packets)
        assert bool(before) == ("open-gop=1" in str(options))
        with av.open(str(path), "w", options=muxer) as target:
            stream, first = target.add_stream_from_template(source.streams.video[0]), packets[0].dts
            for packet in packets:
                packet.pts, packet.dts, packet.stream = packet.pts - first, packet.dts - first, stream
                target.mux(packet)
    for nframes, rows in ((None, range(len(shown))), (3, [0, (len(shown) - 1) // 2, -1]), (1, [-1])):
        with path.open("rb") as file:
            assert np.array_equal(serve_video(file, nframes=nframes, limits=MediaSettings()), shown[list(rows)])


def set_edits(path, *spans):
    """Give a file of one track an edit list: spans of its media, (seconds from, seconds to), one after the other."""

    def box(kind, content):
        return struct.pack(">I4s", 8 + len(content), kind) + content

    content = path.read_bytes()
    end, start = content.index(b"moov") - 4, content.index(b"edts") - 4
    assert end + struct.unpack_from(">I", content, end)[0] == len(content), "no place in the file moves"
    unit = struct.unpack_from(">I", content, content.index(b"mdhd") + 16)[0]
    (old,) = struct.unpack_from(">i", content, content.index(b"elst") + 16)
    entries = [struct.pack(">IiI", round(1000 * (b - a)), round(unit * a) + old, 1 << 16) for a, b in spans]
    edits = box(b"edts", box(b"elst", struct.pack(">II", 0, len(spans)) + b"".join(entries)))
    grown = bytearray(content[:start] + edits + content[start + struct.unpack_from(">I", content, start)[0] :])
    for kind in (b"moov", b"trak"):
        at = grown.index(kind) - 4
        (size,) = struct.unpack_from(">I", grown, at)
        struct.pack_into(">I", grown, at, size + len(grown) - len(content))
    path.write_bytes(bytes(grown))


@pytest.mark.parametrize("spans", [[(0.5, 1.0), (2.0, 2.4)], [(2.0, 2.5), (0.5, 1.0)], [(0.5, 1.5), (1.2, 2.2)]])
@pytest.mark.parametrize("options", [{"g": "250", "bf": "0"}, {"g": "12", "bf": "0"}])
def test_edit_lists_may_join_and_repeat_parts_of_a_file(tmp_path, spans, options):
    path = encoded(tmp_path / "clip.mp4", 30, "libx264", {"qp": "0", **options}, {"use_editlist": "1"})
    set_edits(path, *spans)
    rows = [row for a, b in spans for row in range(round(10 * a), round(10 * b))]
    assert count_frames(path) == len(rows)
    frames = clip(30, height=64, width=64, level=3)[rows]
    assert np.abs(both_ways(path, len(rows)).astype(int) - frames).max() <= 4


FROM, TO = (f"videos/observation.images.main/{end}_timestamp" for end in ("from", "to"))
INDEX = "meta/episodes/chunk-000/file-000.parquet"
SPANS = {FROM: [0.0, 0.4], TO: [0.4, 0.9]}  # the two episodes of the first file, of 4 and 5 rows


@pytest.mark.parametrize(
    ("changed", "lost"),
    [
        ({}, []),
        ({FROM: [0.02, 0.42], TO: [0.42, 0.92]}, []),  # within a row
        ({FROM: [0.1, 0.5], TO: [0.5, 1.0]}, [0, 1]),  # both begin one row late
        ({FROM: [0.0, 0.5], TO: [0.4, 1.0]}, [1]),  # a gap in a file without frames to spare
        ({FROM: [0.0, 0.3], TO: [0.4, 0.8]}, [1]),  # two episodes on one frame
        ({FROM: [0.0, 0.4], TO: [0.3, 0.9]}, [0]),  # fewer frames than rows
        ({FROM: [0.5, 0.0], TO: [0.9, 0.5]}, []),  # in another order
    ],
)
def test_a_part_of_a_video_that_is_not_the_episodes_is_refused(root, changed, lost):
    change_rows(root / INDEX, **changed)
    skipped = []
    read = {e.id: e for e in read_episodes(root, on_skip=skipped.append)}
    assert [part.episode for part in skipped] == lost
    assert set(read) == {f"episode-{n}" for n in range(4) if n not in lost}
    assert [part.episode for part in summarize(root).skipped] == lost
    assert len(list(read_episodes(root, with_frames=False))) == 4
    if not lost and changed.get(FROM, [0])[0] < 0.1:
        for number, episode in enumerate(read.values()):
            assert np.abs(episode.frames.astype(int) - clip(4 + number, level=20 * number)).max() <= 4


def test_frames_of_removed_episodes_may_stay_in_a_file(root):
    change_rows(root / INDEX, length=[3, 5], **{TO: [0.3, 0.9]})
    data = root / "data/chunk-000/file-000.parquet"
    table = pq.read_table(data)
    pq.write_table(pa.concat_tables([table.slice(0, 3), table.slice(4)]), data)
    first, second, *_ = read_episodes(root)
    assert np.abs(first.frames.astype(int) - clip(3)).max() <= 4
    assert np.abs(second.frames.astype(int) - clip(5, level=20)).max() <= 4


@pytest.mark.hostile("media")
@pytest.mark.parametrize(
    ("stamps", "reason"),
    [
        ([0.0, 0.0, 0.0, 0.0], "do not increase"),
        ([0.0, 0.1, 0.1, 0.2], "do not increase"),
        ([0.4, 0.5, 0.6, 0.7], "run from 0.400 to 0.700 s"),
        ([5.0, 5.1, 5.2, 5.3], "time stamps begin at 0"),
    ],
)
def test_time_stamps_that_do_not_tell_frames_apart_are_refused(root, stamps, reason):
    data = root / "data/chunk-000/file-000.parquet"
    rest = pq.read_table(data)["timestamp"].to_pylist()[4:]
    change_rows(data, timestamp=[*stamps, *rest])
    skipped = []
    assert [e.id for e in read_episodes(root, on_skip=skipped.append)] == ["episode-1", "episode-2", "episode-3"]
    assert reason in skipped[0].reason
    assert [part.episode for part in summarize(root).skipped] == [0]


def test_a_file_that_shows_its_frames_faster_than_the_index_says_is_refused(root):
    """Frames of other rows lie at its times; a file of more frames than rows may have another rate."""
    (path,) = root.glob("videos/*/chunk-000/file-000.mp4")
    frames = np.concatenate([clip(4), clip(5, level=20)])
    with VideoWriter(path, height=32, width=48, fps=20) as writer:
        writer.add(frames)
    skipped = []
    assert [e.id for e in read_episodes(root, on_skip=skipped.append)] == ["episode-2", "episode-3"]
    assert "its 9 frames in 0.450 s, and its index says 0.900 s: encode it with 10 frames" in skipped[0].reason
    assert [part.episode for part in summarize(root).skipped] == [0, 1]
    with VideoWriter(path, height=32, width=48, fps=20) as writer:
        writer.add(frames.repeat(2, axis=0))
    first, second, *_ = read_episodes(root)
    assert np.abs(first.frames.astype(int) - clip(4)).max() <= 4
    assert np.abs(second.frames.astype(int) - clip(5, level=20)).max() <= 4


def test_the_end_of_a_part_follows_from_its_rows_where_the_index_does_not_say(root):
    """LeRobot does not read `to_timestamp`."""
    change_rows(root / INDEX, **{TO: [None, 0.9]})
    first = next(read_episodes(root))
    assert np.abs(first.frames.astype(int) - clip(4)).max() <= 4
    assert summarize(root).skipped == ()


def test_parts_may_begin_later_than_their_rows_take_where_the_file_does_too(root):
    """Joined files last as long as their headers said: here the first part of 4 rows at 10 per second takes 0.5 s."""
    (path,) = root.glob("videos/*/chunk-000/file-000.mp4")
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=20, options={"g": "1", "crf": "10"})
        stream.height, stream.width, stream.pix_fmt = (*clip(4).shape[1:3], "yuv420p")
        for frame, at in zip([*clip(4), *clip(5, level=20)], [0, 2, 4, 6, 10, 12, 14, 16, 18], strict=True):
            picture = av.VideoFrame.from_ndarray(frame, format="rgb24")
            picture.pts, picture.time_base = at, Fraction(1, 20)
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    change_rows(root / INDEX, **{FROM: [0.0, 0.5], TO: [0.5, 1.0]})
    first, second, *_ = read_episodes(root)
    assert np.abs(first.frames.astype(int) - clip(4)).max() <= 12
    assert np.abs(second.frames.astype(int) - clip(5, level=20)).max() <= 12


def test_rows_without_time_stamps_do_not_find_their_frames(root):
    path = root / "data/chunk-000/file-000.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["timestamp"]), path)
    skipped = []
    assert [e.id for e in read_episodes(root, on_skip=skipped.append)] == ["episode-2", "episode-3"]
    assert [part.episode for part in skipped] == [0, 1]
    with refuses("timestamp"):
        list(frames_of(root, load_index(root, load_info(root))[0][0], KEY))


def test_a_camera_without_a_video_in_one_episode_is_absent_there(root):
    change_rows(root / INDEX, **{FROM: [None, 0.4]})
    first, second, *_ = read_episodes(root)
    assert first.frames is None
    assert len(second.frames) == 5
    assert list(frames_of(root, load_index(root, load_info(root))[0][0], KEY)) == []
    assert summarize(root).skipped == ()


@pytest.mark.parametrize("size", [(32, 32), (96, 96)])
def test_equal_frames_give_equal_bytes_whatever_memory_held_before(tmp_path, size):
    rng = np.random.default_rng(0)
    frames = np.zeros((40, *size, 3), np.uint8)
    for frame in frames:
        row, column = rng.integers(0, min(size) - 6, 2)
        frame[row : row + 6, column : column + 6] = 255
    path, found = tmp_path / "a.mp4", set()
    for _ in range(10):
        held = [np.full(int(rng.integers(10, 200_000)), rng.integers(255), np.uint8) for _ in range(50)]
        del held
        with VideoWriter(path, height=size[0], width=size[1], fps=20) as video:
            video.add(frames)
        found.add(path.read_bytes())
        decode_video(path, np.arange(40) / 20, fps=20)
    assert len(found) == 1
    assert b"mbtree=0" in found.pop(), "its AVX-512 code adds memory that nobody wrote"
