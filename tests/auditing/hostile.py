"""Reads files in a process of its own, whose memory the test measures: what each gave, as a line of JSON."""

import json
import sys
from pathlib import Path

from guerdon.auditing.logs import read_log
from guerdon.errors import GuerdonError
from guerdon.reading.containers import good_rows


def audited(path):
    rows = read_log(path)
    return {"rows": len(rows), "bad": rows.bad}


def kept(path):
    return {"rows": len(list(good_rows(path)))}


if __name__ == "__main__":
    read = {"audited": audited, "kept": kept}[sys.argv[1]]
    for name in sys.argv[2:]:
        try:
            found = read(Path(name))
        except GuerdonError as error:
            found = {"error": str(error)}
        sys.stdout.write(json.dumps({"file": Path(name).name, **found}) + "\n")
