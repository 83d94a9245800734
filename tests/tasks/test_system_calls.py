"""Numbers of system calls in the allow list, against the headers of the kernel where the machine has them."""

import re
from pathlib import Path

import pytest

from guerdon.tasks.code import code_filter

HEADERS = Path("/usr/include")
AARCH64 = HEADERS / "asm-generic" / "unistd.h"  # whose numbers aarch64 has
X86_64 = HEADERS / "x86_64-linux-gnu" / "asm" / "unistd_64.h"
LISTS = Path(code_filter.__file__).read_text(encoding="utf-8")
CALLS = re.findall(r"\b([a-z]\w+) (\d+|-) (\d+|-)(?=[,\n\"])", LISTS)


def numbers(path):
    """Numbers of a header by name; `__NR3264_x` has one number for both sizes of a word."""
    lines = re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)\b", path.read_text(encoding="utf-8"))
    return dict(lines)


@pytest.mark.parametrize(("path", "place", "other"), [(AARCH64, 2, {"newfstatat": "fstatat"}), (X86_64, 1, {})])
def test_the_numbers_are_those_of_the_kernel(path, place, other):
    if not path.is_file():
        pytest.skip(f"{path}: no headers of the kernel here")
    known = numbers(path)
    wrong = {}
    for call in CALLS:
        name, number = other.get(call[0], call[0]), call[place]
        if number == "-":
            continue
        if known.get(name) not in (number, None):
            wrong[call[0]] = (number, known[name])
    found = [call for call in CALLS if call[place] != "-" and other.get(call[0], call[0]) in known]
    assert not wrong
    assert len(found) > 0.95 * sum(call[place] != "-" for call in CALLS)
