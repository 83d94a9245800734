"""The allow list of system calls: its numbers, and what the filters decide, on both architectures."""

import errno
import re
import struct
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon.tasks.code import code_filter
from guerdon.tasks.code.code_filter import filter_of_program, filter_of_sandbox
from guerdon.tasks.code.code_kernel import architecture
from tables import cases

ALLOW, KILL = 0x7FFF0000, 0x80000000
MACHINES = {name: architecture(name) for name in ("x86_64", "aarch64")}
HEADERS = {"x86_64": "asm/unistd_64.h", "aarch64": "asm-generic/unistd.h"}
GENERIC = """
#define __BITS_PER_LONG 64
#define __ARCH_WANT_RENAMEAT
#define __ARCH_WANT_NEW_STAT
#define __ARCH_WANT_SET_GET_RLIMIT
#define __ARCH_WANT_SYS_CLONE3
#define __ARCH_WANT_MEMFD_SECRET
#include <asm-generic/unistd.h>
"""  # as the kernel does for aarch64
REACHES_TOO_FAR = """
keyctl add_key request_key shmget shmat shmctl semget semop semtimedop semctl msgget msgsnd msgrcv msgctl
mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify memfd_create memfd_secret userfaultfd ptrace
process_vm_readv process_vm_writev process_madvise pidfd_getfd kcmp io_uring_setup io_uring_enter
io_uring_register io_setup io_submit bpf perf_event_open unshare setns clone3 mount umount2 pivot_root chroot
mount_setattr move_mount open_tree fsopen fsconfig fsmount fspick setuid setgid setreuid setregid setresuid
setresgid setgroups setfsuid setfsgid capset seccomp personality swapon swapoff reboot kexec_load init_module
finit_module delete_module sethostname setdomainname settimeofday clock_settime clock_adjtime adjtimex acct
quotactl syslog sync syncfs inotify_init1 fanotify_init name_to_handle_at open_by_handle_at move_pages
migrate_pages mbind set_mempolicy ioprio_set sched_setscheduler sched_setparam sched_setattr rt_sigqueueinfo
rt_tgsigqueueinfo get_robust_list mlock mlock2 mlockall remap_file_pages vmsplice splice tee
landlock_create_ruleset pkey_alloc lookup_dcookie vhangup
"""


def decision(steps, audit, number, arguments=()):
    """What a filter decides, step by step as the kernel runs classic BPF."""
    seen = struct.pack("<iIQ6Q", number, audit, 0, *(*arguments, *[0] * 6)[:6])
    place, value = 0, 0
    while True:
        code, true, false, k = struct.unpack_from("=HBBI", steps, 8 * place)
        place += 1
        if code == 0x06:
            return k
        if code == 0x20:
            (value,) = struct.unpack_from("<I", seen, k)
            continue
        holds = {0x15: value == k, 0x25: value > k, 0x35: value >= k, 0x45: bool(value & k)}[code]
        place += true if holds else false


def decided(machine, number, *arguments, alone=False):
    """What both filters of a program decide together: the kernel takes the stricter one."""
    one = MACHINES[machine]
    both = (filter_of_sandbox(one), filter_of_program(one, alone=alone))
    found = [decision(steps, one.audit, number, arguments) for steps in both]
    return min(found, key=lambda action: action - (1 << 32) if action >= 1 << 31 else action)


def filters_of(one):
    return (filter_of_sandbox(one), *(filter_of_program(one, alone=alone) for alone in (False, True)))


def failed(error):
    return 0x00050000 | error


def names_of(machine):
    """Numbers of system calls by name, from the kernel's headers on this machine."""
    text = GENERIC if machine == "aarch64" else "#include <asm/unistd_64.h>\n"
    ready = subprocess.run(["gcc", "-E", "-dM", "-"], input=text, capture_output=True, text=True, check=False)
    if ready.returncode:
        pytest.skip(f"no {HEADERS[machine]}")
    defined = dict(re.findall(r"#define (__NR\w*) (\S+)", ready.stdout))
    numbers = {}
    for name, value in defined.items():
        while value in defined:
            value = defined[value]
        if name.startswith("__NR_") and value.isdecimal():
            numbers[name.removeprefix("__NR_")] = int(value)
    return numbers


@pytest.fixture(params=MACHINES)
def machine(request):
    return request.param


def rows():
    tables = [code_filter._ALLOWED, code_filter._OF_SANDBOX, code_filter._PROCESSES, code_filter._CLONE,
              code_filter._MMAP, *code_filter._WITH_ARGUMENTS]  # fmt: skip
    return [entry.split() for table in tables for entry in table.replace("\n", " ").split(",")]


def test_the_numbers_are_the_kernels(machine):
    known = names_of(machine)
    column = MACHINES[machine].column
    written = {name: numbers[column] for name, *numbers in rows()}
    assert len(written) == len(rows())
    if "fchmodat2" not in known:
        del written["fchmodat2"]  # newer than the headers
    assert written == {name: str(known.get(name, "-")) for name in written}


@pytest.mark.hostile("programs")
def test_what_reaches_beyond_a_program_is_not_in_the_list(machine):
    known = names_of(machine)
    names = REACHES_TOO_FAR.split()
    assert not set(names) - set(known)
    for name in names:
        assert decided(machine, known[name]) == failed(errno.ENOSYS), name


def test_calls_that_are_not_known_are_missing_as_on_an_older_kernel(machine):
    assert {decided(machine, number) for number in range(453, 2000)} == {failed(errno.ENOSYS)}


@pytest.mark.hostile("programs")
@given(number=st.integers(0, 600), audit=st.integers(0, (1 << 32) - 1))
def test_the_numbers_of_another_architecture_end_a_program(number, audit):
    for one in MACHINES.values():
        for steps in filters_of(one):
            if audit != one.audit:
                assert decision(steps, audit, number) == KILL
    for number_of_x32 in (0x40000000 | number, 0x40000200 | number, 0xFFFFFFFF - number):
        assert decided("x86_64", struct.unpack("=i", struct.pack("=I", number_of_x32))[0]) == KILL


READ = {"x86_64": 0, "aarch64": 63}


@given(arguments=st.lists(st.integers(0, (1 << 64) - 1), min_size=6, max_size=6))
def test_a_call_without_conditions_is_allowed_with_any_argument(arguments):
    for machine, number in READ.items():
        assert decided(machine, number, *arguments) == ALLOW


LOW = st.integers(0, (1 << 32) - 1)
HIGH = st.integers(0, (1 << 32) - 1).map(lambda high: high << 32)


@pytest.mark.hostile("programs")
@given(pid=LOW, high=HIGH)
def test_limits_and_processors_of_no_other_process_are_set(pid, high):
    for machine in MACHINES:
        column = MACHINES[machine].column
        for prlimit, affinity, priority in [((302, 261), (203, 122), (141, 140))]:
            wanted = ALLOW if pid == 0 else failed(errno.EPERM)
            assert decided(machine, prlimit[column], pid | high) == wanted
            assert decided(machine, affinity[column], pid | high) == wanted
            assert decided(machine, priority[column], 0, pid | high) == wanted
            assert decided(machine, priority[column], pid | high, 0) == wanted


@pytest.mark.hostile("programs")
@cases(
    ("call", "arguments", "wanted"),
    [
        ((41, 198), (1, 1, 0), ALLOW), ((41, 198), (2, 1, 0), failed(errno.EAFNOSUPPORT)),
        ((53, 199), (16, 1, 0), failed(errno.EAFNOSUPPORT)),
        ((54, 208), (3, 1, 2), ALLOW), ((54, 208), (3, 1, 26), failed(errno.ENOPROTOOPT)),  # SO_ATTACH_FILTER
        ((54, 208), (3, 6, 2), failed(errno.ENOPROTOOPT)),
        ((16, 29), (0, 0x5401), ALLOW), ((16, 29), (0, 0x5412), failed(errno.ENOTTY)),  # TIOCSTI
        ((72, 25), (0, 1030), ALLOW), ((72, 25), (0, 8), failed(errno.EINVAL)),  # F_SETOWN
        ((72, 25), (0, 1031), failed(errno.EINVAL)), ((72, 25), (0, 1024), failed(errno.EINVAL)),  # pipes, leases
        ((157, 167), (15,), ALLOW), ((157, 167), (22,), failed(errno.EINVAL)),  # PR_SET_SECCOMP
        ((9, 222), (0, 4096, 3, 0x22), ALLOW), ((9, 222), (0, 4096, 3, 0x40022), failed(errno.ENOMEM)),
        ((56, 220), (0x003D0F00,), ALLOW), ((56, 220), (0x4111,), ALLOW), ((56, 220), (17,), ALLOW),
        *(((56, 220), (flag | 17,), failed(errno.EPERM)) for flag in (
            0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000, 0x2000, 0x8000)),
    ],
)  # fmt: skip
def test_calls_that_depend_on_their_arguments(call, arguments, wanted):
    for machine, one in MACHINES.items():
        assert decided(machine, call[one.column], *arguments) == wanted


@pytest.mark.hostile("programs")
def test_a_program_that_must_be_alone_is_ended_by_another_process_and_not_by_a_thread():
    for machine, one in MACHINES.items():
        clone = (56, 220)[one.column]
        for flags in (17, 0x4111, 0x01200011):  # fork, vfork and fork of a library
            assert decided(machine, clone, flags, alone=True) == KILL
            assert decided(machine, clone, flags, alone=False) == ALLOW
        assert decided(machine, clone, 0x003D0F00, alone=True) == ALLOW
        assert decided(machine, READ[machine], alone=True) == ALLOW
    for number in (57, 58):  # fork, vfork
        assert [decided("x86_64", number, alone=alone) for alone in (True, False)] == [KILL, ALLOW]


def test_every_step_leads_to_a_decision_within_the_filter(machine):
    """As the kernel checks a filter before it takes it."""
    one = MACHINES[machine]
    for steps in filters_of(one):
        count = len(steps) // 8
        assert count <= 4096
        for place in range(count):
            code, true, false, k = struct.unpack_from("=HBBI", steps, 8 * place)
            assert code != 0x20 or (k % 4 == 0 and k < 64)
            assert place + 1 + max(true, false) < count or code in (0x06, 0x20)
        assert struct.unpack_from("=H", steps, 8 * (count - 1)) == (0x06,)


@cases("name", ["riscv64", "ppc64le", "s390x", "armv7l", "i686"])
def test_another_architecture_is_refused_by_name(name):
    with pytest.raises(OSError, match=f"no list of system calls for {name}: programs run on x86_64 and aarch64"):
        architecture(name)


def test_a_python_of_32_bits_is_refused(monkeypatch):
    monkeypatch.setattr("sys.maxsize", (1 << 31) - 1)
    with pytest.raises(OSError, match="for aarch64 with a 32-bit Python: programs run on"):
        architecture("aarch64")
