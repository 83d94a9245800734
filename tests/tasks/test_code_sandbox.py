"""What a program finds in the sandbox, as root and as an ordinary user: no way out, and nothing of other programs."""

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from test_code_tests import isolated

from guerdon.tasks.code import code_memory, code_start, code_tests
from guerdon.tasks.code.code_memory import make_group, remove_group
from guerdon.tasks.code.code_sandbox import DISK, MEMORY, PROCESSES, SHARE, assigned_number
from guerdon.tasks.code.code_tests import Sandbox, read_tests, run_tests

pytestmark = pytest.mark.skipif(not isolated(), reason="this machine has no namespaces for isolation")
ORDINARY = 12345  # a user that this machine has no processes of
SYSTEM_PYTHON = "/usr/bin/python3"
GUERDON = Path(code_start.__file__).parents[2]
RIGHT = "print(input())"


@pytest.fixture(scope="module")
def copied():
    """guerdon's sandbox where any user may read it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        place = Path(folder) / "guerdon"
        (place / "tasks").mkdir(parents=True)
        for name in ("__init__.py", "tasks/__init__.py"):
            shutil.copy(GUERDON / name, place / name)
        shutil.copytree(GUERDON / "tasks/code", place / "tasks/code", ignore=shutil.ignore_patterns("__pycache__"))
        subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
        yield place / "tasks/code/code_start.py"


class Started:
    """A sandbox that was started by a command."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ready = json.loads(self.process.stdout.readline())

    def run(self, program, cpu=5, stdin=""):
        asked = {"program": program, "stdin": stdin, "most": 99_999, "cpu": cpu}
        reply = self.reply(asked)
        return self.reply(asked | {"processes": True}) if reply["state"] == "processes" else reply

    def reply(self, asked):
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def command_of(user, copied):
    if user == "this user":
        return [os.path.realpath(sys.executable), "-I", "-S", "-B", code_start.__file__, "-"]
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root may become another user")
    ready = subprocess.run([SYSTEM_PYTHON, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"], check=False)
    if ready.returncode:
        pytest.skip("no interpreter that every user may run")
    become = ["setpriv", f"--reuid={ORDINARY}", f"--regid={ORDINARY}", "--clear-groups"]
    return [*become, SYSTEM_PYTHON, "-I", "-S", "-B", str(copied), "-"]


@pytest.fixture(params=["this user", "an ordinary user"], scope="module")
def started(request, copied):
    sandbox = Started(command_of(request.param, copied))
    if "error" in sandbox.ready and request.param != "this user":
        pytest.skip(sandbox.ready["error"])
    yield sandbox
    sandbox.close()


def test_it_runs_programs_as_a_user_without_rights(started):
    program = "import os\nprint(os.getuid(), os.getgroups(), os.path.exists('/proc'), os.getpid() < 9, os.getppid())"
    assert started.run(program) == {"state": "done", "output": f"{started.ready['user']} [] False True 0\n"}
    assert started.ready["user"] != 0


HEAD = """
import ctypes, errno, mmap, os, platform, resource, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
COLUMN = ("x86_64", "aarch64").index(platform.machine())
room = ctypes.create_string_buffer(4096)
def called(numbers, *arguments):
    ctypes.set_errno(0)
    return libc.syscall(ctypes.c_long(numbers[COLUMN]), *arguments)
def refused(numbers, *arguments, by=(errno.ENOSYS, errno.EPERM)):
    value = called(numbers, *arguments)
    assert value == -1, (numbers, "returned", value)
    assert ctypes.get_errno() in by, (numbers, errno.errorcode[ctypes.get_errno()])
vector = (ctypes.c_uint64 * 2)(ctypes.addressof(room), 16)
limit = (ctypes.c_uint64 * 2)(1, 1)
new_user = struct.pack("8Q", 0x10000000, 0, 0, 0, 17, 0, 0, 0)
"""
HOSTILE = {
    "reads the session keyring of the owner": "refused((250, 219), 11, -3, room, 4096, 0)",
    "describes the session keyring of the owner": "refused((250, 219), 6, -3, room, 4096, 0)",
    "writes to the session keyring of the owner": "refused((248, 217), b'user', b'guerdon-test', b'x', 1, -3)",
    "asks for a key": "refused((249, 218), b'user', b'guerdon-test', None, -3)",
    "makes shared memory of System V": "refused((29, 194), 4711, 1 << 20, 0o1666)",
    "makes a semaphore of System V": "refused((64, 190), 4711, 1, 0o1666)",
    "makes a message queue of System V": "refused((68, 186), 4711, 0o1666)",
    "opens a message queue": "refused((240, 180), b'guerdon-test', 0o102, 0o600, None)",
    "reads the limits of process 1": "refused((302, 261), 1, 7, None, room)",
    "changes the limits of process 1": "refused((302, 261), 1, 1, limit, None)",
    "changes the limits of every process": (
        "for pid in range(1, 300):\n"
        "    if pid != os.getpid(): refused((302, 261), pid, 0, limit, None)"),
    "keeps memory in a file without a name": "refused((319, 279), b'x', 0)",
    "keeps memory that is secret": "refused((447, 447), 0)",
    "keeps memory in larger pipes": (
        "r, w = os.pipe()\nrefused((72, 25), w, 1031, 1 << 20, by=(errno.EINVAL,))"),
    "takes pages from the pool of the machine": "refused((9, 222), 0, 2 << 20, 3, 0x40022, -1, 0, by=(errno.ENOMEM,))",
    "handles faults of pages": "refused((323, 282), 1)",
    "traces process 1": "refused((101, 117), 16, 1, 0, 0)",
    "reads the memory of process 1": "refused((310, 270), 1, vector, 1, vector, 1, 0)",
    "writes the memory of process 1": "refused((311, 271), 1, vector, 1, vector, 1, 0)",
    "takes a file of process 1": "refused((438, 438), os.pidfd_open(1), 0, 0)",
    "compares files with process 1": "refused((312, 272), os.getpid(), 1, 0, 0, 0)",
    "uses io_uring": "refused((425, 425), 8, room)",
    "loads a program into the kernel": "refused((321, 280), 0, room, 72)",
    "counts events": "refused((298, 241), room, 0, -1, -1, 0)",
    "makes a namespace of users": "refused((272, 97), 0x10000000)",
    "makes a namespace of mounts": "refused((272, 97), 0x00020000)",
    "clones into a namespace of users": "refused((56, 220), 0x10000011, 0, 0, 0, 0)",
    "clones into a namespace by clone3": "refused((435, 435), new_user, 64)",
    "clones a sibling": "refused((56, 220), 0x8011, 0, 0, 0, 0)",
    "mounts": "refused((165, 40), b'none', b'/tmp', b'tmpfs', 0, None)",
    "unmounts": "refused((166, 39), b'/tmp', 2)",
    "mounts by descriptors": "refused((428, 428), -100, b'/usr', 1)",
    "changes its root": "refused((161, 51), b'/tmp')",
    "enters a namespace": "refused((308, 268), os.pidfd_open(1), 0x20000000)",
    "becomes root": "refused((117, 147), 0, 0, 0)",
    "becomes another user": "refused((117, 147), 1, 1, 1)",
    "watches files of the system": "refused((294, 26), 0)",
    "has signals sent to process 1": "r, w = os.pipe()\nrefused((72, 25), r, 8, 1, by=(errno.EINVAL,))",
    "leases a file of the system": (
        "file = os.open(sys.executable, os.O_RDONLY)\nrefused((72, 25), file, 1024, 0, by=(errno.EINVAL,))"),
    "moves process 1 to one processor": "refused((203, 122), 1, 8, b'\\1' + bytes(7))",
    "slows process 1 down": "refused((141, 140), 0, 1, 19)",
    "slows every process of its user down": "refused((141, 140), 2, 0, 19)",
    "writes all disks": "refused((162, 81))",
    "sends a signal with a value to process 1": "refused((129, 138), 1, 10, room)",
    "filters the packets of a socket": (
        "import socket\na, b = socket.socketpair()\n"
        "refused((54, 208), a.fileno(), 1, 26, room, 16, by=(errno.ENOPROTOOPT,))"),
    "types into a terminal": "refused((16, 29), 0, 0x5412, b'x', by=(errno.ENOTTY,))",
    "opens a file by its handle": "refused((304, 265), -100, room, 0)",
}  # fmt: skip


@pytest.mark.hostile("programs")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_program_reaches_nothing_beyond_itself(name, started):
    assert started.run(f"{HEAD}{HOSTILE[name]}\nprint('refused')") == {"state": "done", "output": "refused\n"}


KILLS = """
import os, signal
for pid in (1, -1):
    for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD, signal.SIGIO):
        if pid != -1 or number == signal.SIGCHLD:
            try: os.kill(pid, number)
            except PermissionError: pass
"""
LEAVES = {
    "kills process 1": KILLS,
    "changes limits": "import os, resource\nfor pid in (0, 1):\n    for kind in range(16):\n        try: "
                      "resource.prlimit(pid, kind, (1, 1))\n        except (OSError, ValueError): pass",
    "changes its own limits": "import resource\nfor kind in range(16):\n    resource.setrlimit(kind, (1, 1))",
    "leaves children": "import os, signal, time\nfor i in range(6):\n    if os.fork() == 0:\n"
                       "        os.setsid(); signal.signal(15, signal.SIG_IGN)\n        time.sleep(1000)",
    "is killed with children": "import os, time\nfor i in range(6):\n    if os.fork() == 0: time.sleep(1000)\n"
                               "os.kill(os.getpid(), 9)",
    "closes all files": "import os\nos.closerange(0, 64)",
    "stops itself and its parent": "import os\nos.kill(1, 19)\nos.kill(os.getpid(), 19)",
    "fills the folder": "try:\n    with open('/tmp/x', 'wb') as f:\n        while True: f.write(bytes(1 << 20))\n"
                        "except OSError: pass",
    "is not to be dumped": "import ctypes\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)",
}  # fmt: skip


@pytest.mark.hostile("programs")
@pytest.mark.parametrize("name", LEAVES)
def test_the_next_program_is_run_as_if_it_were_the_first(name, started):
    started.run(LEAVES[name], cpu=1)
    program = (
        "import os, resource\nprint(input(), os.listdir(), os.getpid(), "
        "[resource.getrlimit(kind) for kind in range(16) if kind not in (5, 11, 12)])\nopen('file', 'w').write('x')"
    )
    first = Started(started.process.args)
    wanted = first.run(program, stdin="7")
    first.close()
    assert wanted["state"] == "done"
    assert started.run(program, stdin="7") == wanted


def processes_of(pid):
    """Process ids of a process and everything below it, without those that have ended."""
    found, level = [], [pid]
    while level:
        found += level
        level = [int(child) for one in level for child in Path(f"/proc/{one}/task/{one}/children").read_text().split()]
    return [one for one in found if "Z (zombie)" not in Path(f"/proc/{one}/status").read_text()]


CHILDREN_HOLD = """
import os
MOST, COUNT = 30, 5  # blocks of 10 MiB, children
children = []
for i in range(COUNT):
    (said, says), (asked, asks) = os.pipe(), os.pipe()
    try: pid = os.fork()
    except OSError: break
    if pid == 0:
        os.close(asks); os.close(said)
        held = []
        try:
            while len(held) < MOST: held.append(bytearray(b"x" * (10 << 20)))
        except MemoryError: pass
        for again in (1, 2):  # the second time they all have what they get, and no more is ended for its memory
            os.write(says, b"%d" % len(held))
            os.read(asked, 1)
        os._exit(0)
    os.close(says); os.close(asked)
    children.append((said, asks))
for said, asks in children: os.read(said, 9)
together = 0
for said, asks in children:
    try: os.write(asks, b".")
    except BrokenPipeError: continue
    together += int(os.read(said, 9) or 0)
print(together * 10)
"""
MIXED = CHILDREN_HOLD.replace('bytearray(b"x" * (10 << 20))', "shared()").replace("import os\n", """
import mmap, os
def shared():
    '''Memory that is in no process's resident set.'''
    try: block = mmap.mmap(-1, 10 << 20)
    except OSError: raise MemoryError
    for place in range(0, len(block), 4096): block[place] = 1
    block.madvise(mmap.MADV_DONTNEED)
    return block
""", 1)  # fmt: skip


@pytest.mark.hostile("programs")
@pytest.mark.parametrize("program", [CHILDREN_HOLD, MIXED], ids=["of their own", "shared"])
def test_children_hold_no_more_together_than_the_limit(program, started):
    result = started.run(program, cpu=20)
    held = int(result["output"] or 0)  # nothing where the program itself was ended for its memory
    assert held <= (MEMORY + 2 * DISK) >> 20  # with what a control group has for /tmp and the kernel
    assert started.run(RIGHT, stdin="7") == {"state": "done", "output": "7\n"}


def test_a_single_process_has_the_whole_limit(started):
    program = (
        "x = bytearray(900 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\nprint(len(x))\n"
        "try: bytearray(200 << 20)\nexcept MemoryError: print('no more')"
    )
    assert started.run(program, cpu=20) == {"state": "done", "output": f"{900 << 20}\nno more\n"}


USES = {
    "threads": (
        "import threading\nfound = []\nthreads = [threading.Thread(target=found.append, args=(i,)) for i in range(7)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\nprint(sorted(found))", "[0, 1, 2, 3, 4, 5, 6]"),
    "a pool of threads": (
        "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(4) as pool:\n"
        "    print(sum(pool.map(lambda x: x * x, range(100))))", "328350"),
    "deep recursion in a large stack": (
        "import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(1 << 28)\n"
        "def f(n): return n and 1 + f(n - 1)\nt = threading.Thread(target=lambda: print(f(20000)))\nt.start()\n"
        "t.join()", "20000"),
    "a limit that it sets itself": (
        "import resource\nhard = resource.getrlimit(resource.RLIMIT_STACK)[1]\n"
        "resource.setrlimit(resource.RLIMIT_STACK, (hard, hard))\nresource.setrlimit(resource.RLIMIT_AS, "
        "(1 << 26,) * 2)\nimport subprocess\n"
        "print(subprocess.run(['echo', 'on'], capture_output=True, text=True).stdout)", "on"),
    "processes one after another": (
        "import subprocess, sys\nfor i in range(12):\n    done = subprocess.run([sys.executable, '-c', "
        "f'print({i})'], capture_output=True, text=True)\n    assert done.stdout == f'{i}\\n', done\n"
        "print('all')", "all"),
    "a shell": ("import os\nprint(os.popen('echo a b | tr a-z A-Z').read())", "A B"),
    "forks": (
        "import os\nr, w = os.pipe()\nif os.fork() == 0:\n    os.write(w, b'x'); os._exit(3)\n"
        "print(os.read(r, 1), os.waitstatus_to_exitcode(os.wait()[1]))", "b'x' 3"),
    "multiprocessing": (
        "import multiprocessing\ndef f(c): c.send(c.recv() + 1)\na, b = multiprocessing.Pipe()\n"
        "p = multiprocessing.get_context('fork').Process(target=f, args=(b,))\np.start(); a.send(1); print(a.recv()); "
        "p.join()", "2"),
    "threads and processes": (
        "import subprocess\nfrom concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(3) as pool:\n"
        "    print(list(pool.map(lambda i: subprocess.run(['echo', str(i)], capture_output=True, text=True).stdout"
        ".strip(), range(6))))", "['0', '1', '2', '3', '4', '5']"),
    "asyncio and processes": (
        "import asyncio\nasync def main():\n    found = [await asyncio.create_subprocess_exec('sh', '-c', "
        "f'exit {i}') for i in range(2)]\n    return [await one.wait() for one in found]\nprint(asyncio.run(main()))",
        "[0, 1]"),
    "signals and clocks": (
        "import signal, time\nsignal.signal(signal.SIGALRM, lambda *_: print('rung'))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.01)\nsignal.pause()\nassert time.time() and time.monotonic() and "
        "time.process_time() and time.thread_time()\ntime.sleep(0)", "rung"),
    "files": (
        "import fcntl, mmap, os, shutil, tempfile\nwith tempfile.TemporaryDirectory() as d:\n    p = d + '/a'\n"
        "    with open(p, 'wb+') as f:\n        f.write(b'abc'); f.flush(); os.fsync(f.fileno())\n"
        "        fcntl.lockf(f, fcntl.LOCK_EX); fcntl.flock(f, fcntl.LOCK_EX)\n"
        "        print(mmap.mmap(f.fileno(), 0)[:2])\n"
        "    shutil.copy2(p, p + 'b'); shutil.copytree(d, d + 'c'); os.rename(p, p + 'd'); os.symlink(p, p + 'e')\n"
        "    os.mkfifo(p + 'f'); os.chmod(p + 'd', 0o600); os.utime(p + 'd'); os.truncate(p + 'd', 1)\n"
        "    print(len(list(os.scandir(d)))); shutil.rmtree(d + 'c')", "b'ab'\n4"),
    "local sockets": (
        "import selectors, socket\ns = socket.socket(socket.AF_UNIX)\ns.setsockopt(socket.SOL_SOCKET, "
        "socket.SO_REUSEADDR, 1)\ns.bind('s'); s.listen()\nc = socket.socket(socket.AF_UNIX)\nc.connect('s')\n"
        "a, _ = s.accept()\nc.sendall(b'x')\nwith selectors.DefaultSelector() as e:\n    e.register(a, 1)\n"
        "    assert e.select()\nprint(a.recv(1), socket.gethostname() != '')", "b'x' True"),
    "what there is of the machine": (
        "import os, platform, resource, sys, random, uuid, hashlib\nassert os.cpu_count() and os.sched_getaffinity(0)\n"
        "os.nice(1); os.sched_setaffinity(0, os.sched_getaffinity(0)); os.times(); os.uname(); os.urandom(4)\n"
        "resource.getrusage(resource.RUSAGE_SELF); uuid.uuid4()\n"
        "print(sys.stdin.isatty(), os.getpgrp() == os.getpid())", "False True"),
}  # fmt: skip


@pytest.mark.parametrize("name", USES)
def test_what_programs_use_still_works(name, started):
    program, printed = USES[name]
    result = started.run(program, cpu=10)
    assert (result["state"], result["output"].strip()) == ("done", printed)


FORK = "import os\nif os.fork() == 0: os._exit(0)\nos.wait()\nprint('both')"


def test_where_there_is_no_control_group_a_program_says_whether_it_starts_processes(started):
    if started.ready["memory"] != "share":
        pytest.skip("a control group limits them")
    asked = {"program": FORK, "stdin": "", "most": 99, "cpu": 5}
    assert started.reply(asked) == {"state": "processes", "output": ""}
    assert started.reply(asked | {"processes": True}) == {"state": "done", "output": "both\n"}
    limits = "import os, resource\nprint(resource.getrlimit(resource.RLIMIT_AS))"
    assert started.reply(asked | {"program": limits})["output"] == f"({MEMORY}, {MEMORY})\n"
    assert started.reply(asked | {"program": limits, "processes": True})["output"] == f"({SHARE}, {SHARE})\n"
    assert SHARE * PROCESSES == MEMORY
    killed = "import os\nos.kill(os.getpid(), 31)"  # SIGSYS, from itself: it is run again, and fails
    assert started.run(killed) == {"state": "failed", "output": ""}
    assert started.reply(asked | {"program": USES["threads"][0]})["state"] == "done"


WITHOUT_GROUPS = """
import sys
sys.path.append({folder!r})
from guerdon.tasks.code import code_sandbox
code_sandbox.make_group = lambda process, limit: None
code_sandbox.start(sys.argv[1:])
"""


@pytest.fixture
def without_groups(tmp_path, monkeypatch):
    """guerdon's own two processes of an answer, where no control group can be made."""
    (tmp_path / "code_start.py").write_text(WITHOUT_GROUPS.format(folder=str(GUERDON.parent)))
    monkeypatch.setattr(code_tests, "__file__", str(tmp_path / "code_tests.py"))
    with Sandbox() as sandbox:
        assert sandbox.memory == "share"
        yield sandbox


FORKS = """
import os
def other():
    r, w = os.pipe()
    if os.fork() == 0:
        os.write(w, b'7')
        os._exit(0)
    os.wait()
    return int(os.read(r, 1))
"""
FORKED = {
    "a program": ('{"inputs": ["1", "2"], "outputs": ["7", "7"]}', f"{FORKS}print(other())"),
    "a function": ('{"fn_name": "f", "inputs": [[1], [2]], "outputs": [7, 7]}', f"{FORKS}def f(x): return other()"),
    "a module": ("assert f(1) == 7\nassert f(2) == 7", f"{FORKS}seven = other()\ndef f(x): return seven"),
    "a call after others": ("import os\ndef test_f():\n    from solution import f\n    assert [f(0), f(1)] == [0, 7]",
                            f"{FORKS}def f(x): return x and other()"),
    "a test": (f"{FORKS}def test_f():\n    from solution import f\n    assert f(1) == other()", "def f(x): return 7"),
    "both": (f"{FORKS}def test_f():\n    from solution import f\n    assert f(1) == other()",
             f"{FORKS}def f(x): return other()"),
}  # fmt: skip


@pytest.mark.hostile("programs")
@pytest.mark.parametrize("name", FORKED)
def test_programs_with_processes_are_judged_where_there_are_no_control_groups(name, without_groups):
    tests, program = FORKED[name]
    assert run_tests(read_tests(tests), program, without_groups, cpu_seconds=5) == 1
    wrong = program.replace("b'7'", "b'6'").replace("return 7", "return 6")
    assert run_tests(read_tests(tests), wrong, without_groups, cpu_seconds=5) == 0


def test_a_program_with_processes_is_run_again_once(without_groups, monkeypatch):
    asked = []
    send = without_groups._process.send
    monkeypatch.setattr(without_groups._process, "send", lambda what, **more: asked.append(what) or send(what, **more))
    tests, program = FORKED["a program"]
    assert run_tests(read_tests(tests), program, without_groups, cpu_seconds=5) == 1
    assert [one["processes"] for one in asked] == [False, True, True]
    assert run_tests(read_tests(tests), "print(7)", without_groups, cpu_seconds=5) == 1
    assert [one["processes"] for one in asked[3:]] == [False, False]


def test_a_control_group_is_removed_with_its_sandbox():
    sandbox = Sandbox()
    if sandbox.memory != "group":
        sandbox.close()
        pytest.skip("this machine has no control groups that this user may make")
    (inside,) = [one for one in processes_of(sandbox._process.process.pid) if group_of(one)]
    folder = group_of(inside)
    assert folder.is_dir()
    helpers = [os.pidfd_open(one) for one in processes_of(sandbox._process.process.pid) if one != inside]
    sandbox.close()
    for helper in helpers:
        assert select.select([helper], [], [], 60)[0]
        os.close(helper)
    assert not folder.exists()


def group_of(pid):
    """The folder of the control group that a sandbox made for a process; None where it made none."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "/guerdon-" in path:
            return Path(f"/sys/fs/cgroup{'/memory' if controllers else ''}{path}")
    return None


def tree(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def kernel(monkeypatch):
    """Puts files into a new group, as the kernel does; a kernel that does not count swap with its own set."""
    files = {"cgroup.procs", "memory.max", "memory.swap.max", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"}
    mkdir = Path.mkdir

    def make(path, *given, **named):
        mkdir(path, *given, **named)
        for name in files if path.name.startswith("guerdon-") else ():
            (path / name).write_text("unset")

    monkeypatch.setattr(Path, "mkdir", make)
    return files


def written(group):
    return {file.name: file.read_text() for file in group.iterdir() if file.read_text() != "unset"}


def test_a_group_of_version_1_is_made_below_the_own_one(tmp_path, kernel):
    tree(tmp_path, {"proc/self/cgroup": "9:cpu,cpuacct:/\n4:memory:/user/7\n0::/\n"})
    own = tmp_path / "sys/fs/cgroup/memory/user/7"
    own.mkdir(parents=True)
    group = make_group(4711, 1 << 30, tmp_path)
    assert group.parent == own
    limit = f"{1 << 30}"
    assert written(group) == {
        "memory.limit_in_bytes": limit, "memory.memsw.limit_in_bytes": limit, "cgroup.procs": "4711"
    }  # fmt: skip


SLICE = "sys/fs/cgroup/user.slice/user-7.slice"


def test_a_group_of_version_2_is_made_where_memory_is_distributed(tmp_path, kernel):
    distributed = {"sys/fs/cgroup": "cpu memory pids", "sys/fs/cgroup/user.slice": "memory", SLICE: "memory",
                   f"{SLICE}/session.scope": ""}  # fmt: skip
    tree(tmp_path, {f"{place}/cgroup.subtree_control": text for place, text in distributed.items()})
    tree(tmp_path, {"proc/self/cgroup": "0::/user.slice/user-7.slice/session.scope\n"})
    group = make_group(4711, 1 << 30, tmp_path)
    assert group.parent == tmp_path / SLICE  # next to the own one, which has processes
    assert written(group) == {"memory.max": f"{1 << 30}", "memory.swap.max": "0", "cgroup.procs": "4711"}
    kernel.remove("memory.swap.max")
    group = make_group(4711, 1 << 30, tmp_path)
    assert written(group) == {"memory.max": f"{1 << 30}", "cgroup.procs": "4711"}


def test_no_group_is_made_where_there_is_none_to_make(tmp_path):
    assert make_group(1, 1 << 30, tmp_path) is None  # no /proc
    tree(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cgroup.subtree_control": "cpu"})
    assert make_group(1, 1 << 30, tmp_path) is None
    tree(tmp_path, {"proc/self/cgroup": "4:memory:/not/mounted/here\n"})
    assert make_group(1, 1 << 30, tmp_path) is None


def test_a_group_that_takes_no_process_is_removed(tmp_path, monkeypatch):
    tree(tmp_path, {"proc/self/cgroup": "4:memory:/\n"})
    (tmp_path / "sys/fs/cgroup/memory").mkdir(parents=True)
    removed = []
    monkeypatch.setattr(code_memory, "remove_group", removed.append)
    write = Path.write_text

    def refuse(path, text):
        if path.name == "cgroup.procs":
            raise PermissionError(13, "not this process")
        return write(path, text)

    monkeypatch.setattr(Path, "write_text", refuse)
    assert make_group(1, 1 << 30, tmp_path) is None
    assert [folder.parent for folder in removed] == [tmp_path / "sys/fs/cgroup/memory"]


def test_a_group_whose_processes_do_not_end_is_left(tmp_path, monkeypatch):
    def busy(path):
        raise OSError(16, "busy")

    monkeypatch.setattr(Path, "rmdir", busy)
    remove_group(tmp_path, seconds=0.1)
    assert tmp_path.is_dir()
    monkeypatch.undo()
    remove_group(tmp_path / "gone")  # returns at once


def test_numbers_that_the_system_assigned_to_a_user(tmp_path):
    file = tmp_path / "subuid"
    file.write_text("someone:100000:65536\n12345:200000:65536\nroot:300000:1\nempty:1:0\nnonsense\n")
    assert assigned_number(file, 12345) == 200000
    assert assigned_number(file, 0) == 300000  # by name
    assert assigned_number(file, 54321) is None
    assert assigned_number(tmp_path / "missing", 12345) is None


def test_programs_are_read_by_their_user_whatever_the_umask():
    code = (
        "import os\nos.umask(0o077)\nfrom guerdon.tasks.code.code_tests import Sandbox\n"
        "with Sandbox() as s: print(s.run('print(1)', [{'stdin': '', 'most': 9}], 10))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[{'state': 'done', 'output': '1\\n'}]\n"


LOCKED = """
import os, sys
from guerdon.tasks.code.code_kernel import NEW_USERS, call
call("unshare", NEW_USERS)
os.write(os.open("/proc/sys/user/max_user_namespaces", os.O_WRONLY), b"0")
from guerdon.doctor import check_programs
from guerdon.errors import MissingDependencyError
from guerdon.tasks.code.code_tests import Sandbox, read_tests, run_tests
check = check_programs()
print(check.status, check.detail, check.fix, sep="\\n")
try: Sandbox()
except MissingDependencyError as error: print(error)
"""


def test_a_locked_machine_is_said_in_one_line():
    """In a namespace that allows no further ones, as a system without them."""
    done = subprocess.run([sys.executable, "-c", LOCKED], capture_output=True, text=True, check=False)
    status, detail, fix, error = done.stdout.splitlines()
    assert status == "warn"
    assert "does not start (unshare: No space left on device); try it: " in detail
    assert fix.startswith("allow user namespaces")
    assert error == f"{detail}. To run programs of a model, {fix}"


def test_the_command_of_the_message_can_be_tried_by_hand():
    """With `-` in place of a descriptor, which only guerdon can pass."""
    command = [sys.executable, "-I", "-S", "-B", code_start.__file__, "-"]
    done = subprocess.run(command, input="", capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["ready"] is True
