"""Frames out of the bodies of requests: base64 text, data URLs, parts of a form. URLs are never fetched.

This module does not know how frames are decoded (`media.py`), nor which route they came by.

    frames_T_H_W_C = await frames_of(media, Sent(frames_base64=("iVBORw0...",)), nframes=16)
    picture_of_url("data:image/jpeg;base64,/9j/...")      # the base64 text
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields

from guerdon.serve.errors import BadRequest
from guerdon.serve.media import Media
from guerdon.types import ByteArray

_DATA_URL = re.compile(r"data:image/(?:png|jpeg|jpg|webp);base64,")


@dataclass(frozen=True)
class Sent:
    """What a client may send frames as; exactly one of these is set.

    Attributes:
        video_path: an MP4 file under the server's media root.
        frames_base64: pictures, each as base64 text.
        npy_base64: an NPY file as base64 text.
        video_base64: an MP4 or NPY file as base64 text.
        video: an MP4 or NPY file.
        pictures: picture files.
    """

    video_path: str | None = None
    frames_base64: Sequence[str] | None = None
    npy_base64: str | None = None
    video_base64: str | None = None
    video: bytes | None = None
    pictures: Sequence[bytes] | None = None

    def given(self) -> list[str]:
        """Which of them are set, as a client calls them."""
        names = (f.name for f in fields(self) if getattr(self, f.name) is not None)
        return ["frames" if name == "pictures" else name for name in names]


async def frames_of(media: Media, sent: Sent, *, nframes: int | None) -> ByteArray:
    """The frames, (T, H, W, 3) uint8.

    Args:
        media: decodes them.
        sent: one of the kinds.
        nframes: most frames taken of an MP4 video.

    Raises:
        BadRequest: none or several kinds, or text that is no base64.
        MediaRefused: not decoded.
        Busy: too many wait for a decoder.
    """
    given = sent.given()
    if len(given) != 1:
        found = " and ".join(given) if given else "none of them"
        raise BadRequest(
            "give exactly one of video_path, frames_base64, npy_base64 and video_base64 (in a form: video_path, a file "
            f"video, or files frames); there is {found}"
        )
    if sent.video_path is not None:
        return await media.path(sent.video_path, nframes=nframes)
    if sent.video is not None:
        return await media.upload(sent.video, nframes=nframes)
    for param, text in (("npy_base64", sent.npy_base64), ("video_base64", sent.video_base64)):
        if text is not None:
            return await media.upload(_ascii(text, param), nframes=nframes, encoded=True)
    if sent.pictures is not None:
        return await media.pictures(sent.pictures)
    return await media.pictures([_ascii(text, "frames_base64") for text in sent.frames_base64 or ()], encoded=True)


def _ascii(text: str, param: str) -> bytes:
    """The characters of a base64 text."""
    try:
        return text.encode("ascii")
    except UnicodeEncodeError as error:
        raise BadRequest(f"{param} is no base64 text", param=param) from error


def picture_of_url(url: str) -> str:
    """The base64 text of a data URL with a picture in it.

    Raises:
        BadRequest: any other URL.
    """
    match = _DATA_URL.match(url)
    if match is None:
        raise BadRequest(
            "only data URLs with a PNG, JPEG or WebP picture are taken (data:image/jpeg;base64,...); no URL is fetched",
            param="messages",
        )
    return url[match.end() :]
