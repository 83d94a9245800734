"""The system calls that a program of a model may make: an allow list, as a seccomp filter.

What is not in the list fails with ENOSYS, as on an older kernel, so that libraries use what they used before the call
existed. Some calls are allowed with some of their arguments only. A call by the numbers of another architecture (32
bits, x32) ends the process, so that none is reached by another number. Left out is what reaches another process or its
memory (`ptrace`, `process_vm_readv`, `pidfd_getfd`, limits of another process), keeps memory that no limit of a process
counts (System V, message queues, `memfd_create`), outlives the program (keys, IPC), makes namespaces or mounts, or
is there for few programs and has had many faults (`io_uring`, `bpf`, `userfaultfd`, `perf_event_open`).

Imports nothing but the standard library.

A sandbox has two filters: the list with what it needs to start a program, which is installed once, and one that takes
these calls away from each program. The second is short, since it is installed as often as programs run.

    install_filter(filter_of_sandbox(architecture()))                   # in the process that starts programs
    install_filter(filter_of_program(architecture(), alone=True))       # in each of them
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable
from typing import NamedTuple

from guerdon.tasks.code.code_kernel import Architecture

_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _GREATER, _AT_LEAST, _HAS_BITS, _END = 0x20, 0x15, 0x25, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # places in what a filter sees; both architectures are little-endian
_X32 = 0x40000000
_THREAD = 0x00010000  # of clone: not a new process
_SEPARATE = 0x7E020000 | 0x00802000 | 0x00008000  # of clone: new namespaces, tracing, a sibling instead of a child

# name, number on x86_64, number on aarch64
_ALLOWED = """
read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, preadv 295 69, pwritev 296 70,
preadv2 327 286, pwritev2 328 287, lseek 8 62, sendfile 40 71, copy_file_range 326 285,
open 2 -, creat 85 -, openat 257 56, openat2 437 437, close 3 57, close_range 436 436, dup 32 23, dup2 33 -,
dup3 292 24, stat 4 -, fstat 5 80, lstat 6 -, newfstatat 262 79, statx 332 291, statfs 137 43, fstatfs 138 44,
access 21 -, faccessat 269 48, faccessat2 439 439, readlink 89 -, readlinkat 267 78, getdents 78 -, getdents64 217 61,
getcwd 79 17, chdir 80 49, fchdir 81 50, mkdir 83 -, mkdirat 258 34, rmdir 84 -, rename 82 -, renameat 264 38,
renameat2 316 276, link 86 -, linkat 265 37, symlink 88 -, symlinkat 266 36, unlink 87 -, unlinkat 263 35, mknod 133 -,
mknodat 259 33, umask 95 166, utime 132 -, utimes 235 -, utimensat 280 88, futimesat 261 -,
chmod 90 -, fchmod 91 52, fchmodat 268 53, fchmodat2 452 452, chown 92 -, fchown 93 55, lchown 94 -, fchownat 260 54,
truncate 76 45, ftruncate 77 46, fallocate 285 47, fsync 74 82, fdatasync 75 83, fadvise64 221 223, flock 73 32,
getxattr 191 8, lgetxattr 192 9, fgetxattr 193 10, listxattr 194 11, llistxattr 195 12, flistxattr 196 13,
setxattr 188 5, lsetxattr 189 6, fsetxattr 190 7,

munmap 11 215, mremap 25 216, mprotect 10 226, madvise 28 233, brk 12 214, msync 26 227,

execve 59 221, execveat 322 281, exit 60 93, exit_group 231 94, wait4 61 260, waitid 247 95,
set_tid_address 218 96, set_robust_list 273 99, rseq 334 293, futex 202 98, futex_waitv 449 449, arch_prctl 158 -,
getpid 39 172, getppid 110 173, gettid 186 178, getpgid 121 155, getpgrp 111 -, setpgid 109 154, getsid 124 156,
setsid 112 157, getuid 102 174, geteuid 107 175, getgid 104 176, getegid 108 177, getgroups 115 158, getresuid 118 148,
getresgid 120 150, sched_yield 24 124, sched_getaffinity 204 123, sched_getparam 143 121, sched_getscheduler 145 120,
sched_get_priority_max 146 125, sched_get_priority_min 147 126, sched_rr_get_interval 148 127, getpriority 140 141,
getrlimit 97 163, setrlimit 160 164, getrusage 98 165, times 100 153, sysinfo 99 179, uname 63 160, getrandom 318 278,
getcpu 309 168,

kill 62 129, tkill 200 130, tgkill 234 131, pidfd_open 434 434, pidfd_send_signal 424 424, rt_sigaction 13 134,
rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigsuspend 130 133, rt_sigpending 127 136, rt_sigtimedwait 128 137,
sigaltstack 131 132, restart_syscall 219 128, pause 34 -, signalfd 282 -, signalfd4 289 74,
gettimeofday 96 169, time 201 -, clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115, nanosleep 35 101,
alarm 37 -, getitimer 36 102, setitimer 38 103, timer_create 222 107, timer_settime 223 110, timer_gettime 224 108,
timer_getoverrun 225 109, timer_delete 226 111, timerfd_create 283 85, timerfd_settime 286 86, timerfd_gettime 287 87,

poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72, epoll_create 213 -, epoll_create1 291 20, epoll_ctl 233 21,
epoll_wait 232 -, epoll_pwait 281 22, epoll_pwait2 441 441, eventfd 284 -, eventfd2 290 19, pipe 22 -, pipe2 293 59,
connect 42 203, accept 43 202, accept4 288 242, bind 49 200, listen 50 201, getsockname 51 204, getpeername 52 205,
getsockopt 55 209, sendto 44 206, recvfrom 45 207, sendmsg 46 211, recvmsg 47 212, sendmmsg 307 269, recvmmsg 299 243,
shutdown 48 210
"""
_OF_SANDBOX = """
mount 165 40, umount2 166 39, clone3 435 435, unshare 272 97, setns 308 268, setgroups 116 159, setresgid 119 149,
setresuid 117 147, seccomp 317 277
"""  # clone3, whose flags no filter sees, is replaced by clone where it is missing
_PROCESSES = "fork 57 -, vfork 58 -"
_CLONE = "clone 56 220"


class _Argument(NamedTuple):
    """What a system call needs to be allowed.

    Attributes:
        place: of the argument.
        values: that it may have; the kernel reads its low half.
        error: otherwise.
    """

    place: int
    values: tuple[int, ...]
    error: int


_UNIX = _Argument(0, (1,), errno.EAFNOSUPPORT)
_ITSELF = _Argument(0, (0,), errno.EPERM)
_WITH_ARGUMENTS = {
    "socket 41 198": (_UNIX,),
    "socketpair 53 199": (_UNIX,),
    # SOL_SOCKET; reuse address, buffers, keep alive, linger, credentials, time limits
    "setsockopt 54 208": (
        _Argument(1, (1,), errno.ENOPROTOOPT),
        _Argument(2, (2, 7, 8, 9, 13, 15, 16, 20, 21), errno.ENOPROTOOPT),
    ),
    "prlimit64 302 261": (_ITSELF,),
    "sched_setaffinity 203 122": (_ITSELF,),
    "setpriority 141 140": (_ITSELF, _Argument(1, (0,), errno.EPERM)),
    # signal at the parent's end, dumpable, name, bounding set, no new privileges, name of memory
    "prctl 157 167": (_Argument(0, (1, 2, 3, 4, 15, 16, 23, 38, 39, 0x53564D41), errno.EINVAL),),
    # terminal and its size, group in front, bytes to read, blocking, close on exec
    "ioctl 16 29": (_Argument(1, (0x5401, 0x5413, 0x540F, 0x541B, 0x5421, 0x5450, 0x5451), errno.ENOTTY),),
    # copies, flags, locks, size of a pipe to read; no signals, leases, seals or larger pipes
    "fcntl 72 25": (_Argument(1, (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1032), errno.EINVAL),),
}
_MMAP = "mmap 9 222"
_HUGE_PAGES = 0x40000  # from a pool of the whole machine

_Step = tuple[int, int, int, int]  # code, steps to skip where true and where false, value


def filter_of_sandbox(machine: Architecture) -> bytes:
    """The allow list of an architecture and what a sandbox needs to start programs, as steps of classic BPF."""
    steps = _of_this_architecture(machine)
    (mmap,) = _numbers(_MMAP, machine)
    steps += _block(mmap, [*_without_bits(3, _HUGE_PAGES, errno.ENOMEM), (_END, 0, 0, _ALLOW)])
    for entry, arguments in _WITH_ARGUMENTS.items():
        (number,) = _numbers(entry, machine)
        steps += _block(number, _checked(arguments))
    for first, last in _ranges(_numbers(f"{_ALLOWED}, {_CLONE}, {_PROCESSES}, {_OF_SANDBOX}", machine)):
        steps += [(_AT_LEAST, 0, 2, first), (_GREATER, 1, 0, last), (_END, 0, 0, _ALLOW)]
    return _packed([*steps, (_END, 0, 0, _ERROR | errno.ENOSYS)])


def filter_of_program(machine: Architecture, *, alone: bool) -> bytes:
    """What else is refused to a program, as steps of classic BPF.

    Args:
        machine: the architecture.
        alone: end the program with SIGSYS when it starts another process; threads are its own.
    """
    steps = _of_this_architecture(machine)
    for number in _numbers(_OF_SANDBOX, machine):
        steps += _block(number, [(_END, 0, 0, _ERROR | errno.ENOSYS)])
    (clone,) = _numbers(_CLONE, machine)
    other = _KILL if alone else _ALLOW
    of_clone = [*_without_bits(0, _SEPARATE, errno.EPERM), (_HAS_BITS, 1, 0, _THREAD), (_END, 0, 0, other)]
    steps += _block(clone, [*of_clone, (_END, 0, 0, _ALLOW)])
    for number in _numbers(_PROCESSES, machine):
        steps += _block(number, [(_END, 0, 0, other)])
    return _packed([*steps, (_END, 0, 0, _ALLOW)])


def _of_this_architecture(machine: Architecture) -> list[_Step]:
    """Steps that end a process whose call has a number of another architecture, and load the number."""
    steps = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, machine.audit), (_END, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER)]
    if machine.name == "x86_64":
        steps += [(_AT_LEAST, 0, 1, _X32), (_END, 0, 0, _KILL)]
    return steps


def _packed(steps: Iterable[_Step]) -> bytes:
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _numbers(table: str, machine: Architecture) -> list[int]:
    """Numbers of the calls in a table, of those that an architecture has."""
    rows = [entry.split() for entry in table.replace("\n", " ").split(",")]
    return sorted(int(numbers[machine.column]) for _, *numbers in rows if numbers[machine.column] != "-")


def _ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """The first and last of each run of successive numbers."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def _block(number: int, steps: list[_Step]) -> list[_Step]:
    """Steps for one call; they decide it."""
    return [(_EQUAL, 0, len(steps), number), *steps]


def _checked(arguments: Iterable[_Argument]) -> list[_Step]:
    steps: list[_Step] = []
    for place, values, error in arguments:
        left = len(values)
        steps += [(_LOAD, 0, 0, _ARGUMENTS + 8 * place)]
        steps += [(_EQUAL, left - position, 0, value) for position, value in enumerate(values)]
        steps += [(_END, 0, 0, _ERROR | error)]
    return [*steps, (_END, 0, 0, _ALLOW)]


def _without_bits(place: int, bits: int, error: int) -> list[_Step]:
    return [(_LOAD, 0, 0, _ARGUMENTS + 8 * place), (_HAS_BITS, 0, 1, bits), (_END, 0, 0, _ERROR | error)]
