"""A seccomp filter for programs that nobody trusts: the system calls that computing needs, and no others.

An allow-list: what it does not name fails with ENOSYS, as on a kernel built without it, and libraries then take their
older way. Not named are calls that get memory past RLIMIT_AS or leave something behind (memfd_create, System V shared
memory, semaphores and queues, keyrings), reach into other processes (ptrace, process_vm_*, pidfd_*, kcmp), make
namespaces or mounts (unshare, setns, mount, and clone3, whose flags a filter cannot see), slow other processes down
(setpriority, sched_setaffinity) or are favourites of kernel exploits (io_uring_*, bpf, userfaultfd, perf_event_open).
"""

from __future__ import annotations

import os
import struct
from functools import lru_cache

# name, number on x86_64, number on aarch64; "-": that machine does not have it
CALLS = """
    # files
    read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, preadv 295 69, pwritev 296 70,
    preadv2 327 286, pwritev2 328 287, open 2 -, openat 257 56, openat2 437 437, creat 85 -, close 3 57,
    close_range 436 436, lseek 8 62, dup 32 23, dup2 33 -, dup3 292 24, pipe 22 -, pipe2 293 59, fcntl 72 25,
    ioctl 16 29, flock 73 32, fsync 74 82, fdatasync 75 83, truncate 76 45, ftruncate 77 46, fallocate 285 47,
    sendfile 40 71, copy_file_range 326 285, fadvise64 221 223, readahead 187 213, stat 4 -, fstat 5 80, lstat 6 -,
    newfstatat 262 79, statx 332 291, statfs 137 43, fstatfs 138 44, access 21 -, faccessat 269 48,
    faccessat2 439 439, readlink 89 -, readlinkat 267 78, getdents 78 -, getdents64 217 61, getcwd 79 17,
    chdir 80 49, fchdir 81 50, mkdir 83 -, mkdirat 258 34, rmdir 84 -, unlink 87 -, unlinkat 263 35, rename 82 -,
    renameat 264 38, renameat2 316 276, link 86 -, linkat 265 37, symlink 88 -, symlinkat 266 36, mknod 133 -,
    mknodat 259 33, umask 95 166, chmod 90 -, fchmod 91 52, fchmodat 268 53, fchmodat2 452 452, chown 92 -,
    fchown 93 55, lchown 94 -, fchownat 260 54, utime 132 -, utimes 235 -, futimesat 261 -, utimensat 280 88,
    getxattr 191 8, lgetxattr 192 9, fgetxattr 193 10, listxattr 194 11, llistxattr 195 12, flistxattr 196 13,
    removexattr 197 14, lremovexattr 198 15, fremovexattr 199 16, inotify_init 253 -, inotify_init1 294 26,
    inotify_add_watch 254 27, inotify_rm_watch 255 28,
    # waiting and sockets
    select 23 -, pselect6 270 72, poll 7 -, ppoll 271 73, epoll_create 213 -, epoll_create1 291 20,
    epoll_ctl 233 21, epoll_wait 232 -, epoll_pwait 281 22, epoll_pwait2 441 441, eventfd 284 -, eventfd2 290 19,
    signalfd 282 -, signalfd4 289 74, socketpair 53 199, bind 49 200, listen 50 201, accept 43 202, accept4 288 242,
    connect 42 203, getsockname 51 204, getpeername 52 205, sendto 44 206, recvfrom 45 207, sendmsg 46 211,
    recvmsg 47 212, sendmmsg 307 269, recvmmsg 299 243, shutdown 48 210, setsockopt 54 208, getsockopt 55 209,
    # memory
    brk 12 214, mmap 9 222, munmap 11 215, mremap 25 216, mprotect 10 226, madvise 28 233, msync 26 227,
    mincore 27 232, mlock 149 228, mlock2 325 284, munlock 150 229, mlockall 151 230, munlockall 152 231,
    membarrier 324 283,
    # processes, threads and signals
    execve 59 221, execveat 322 281, fork 57 -, vfork 58 -, exit 60 93, exit_group 231 94, wait4 61 260,
    waitid 247 95, set_tid_address 218 96, set_robust_list 273 99, get_robust_list 274 100, rseq 334 293,
    futex 202 98, futex_waitv 449 449, arch_prctl 158 -, sched_yield 24 124, sched_getaffinity 204 123,
    sched_getparam 143 121, sched_getscheduler 145 120, sched_get_priority_max 146 125,
    sched_get_priority_min 147 126, sched_rr_get_interval 148 127, getcpu 309 168, rt_sigaction 13 134,
    rt_sigprocmask 14 135, rt_sigpending 127 136, rt_sigtimedwait 128 137, rt_sigsuspend 130 133,
    rt_sigreturn 15 139, sigaltstack 131 132, restart_syscall 219 128, pause 34 -, getpid 39 172, getppid 110 173,
    gettid 186 178, getpgid 121 155, getpgrp 111 -, setpgid 109 154, getsid 124 156, setsid 112 157, getuid 102 174,
    geteuid 107 175, getgid 104 176, getegid 108 177, getresuid 118 148, getresgid 120 150, getgroups 115 158,
    setuid 105 146, setgid 106 144, setgroups 116 159, setreuid 113 145, setregid 114 143, setresuid 117 147,
    setresgid 119 149, setfsuid 122 151, setfsgid 123 152, capget 125 90, getpriority 140 141, getrlimit 97 163,
    setrlimit 160 164, getrusage 98 165,
    # time and the machine
    time 201 -, gettimeofday 96 169, clock_gettime 228 113, clock_getres 229 114, nanosleep 35 101,
    clock_nanosleep 230 115, alarm 37 -, getitimer 36 102, setitimer 38 103, times 100 153, timer_create 222 107,
    timer_settime 223 110, timer_gettime 224 108, timer_getoverrun 225 109, timer_delete 226 111,
    timerfd_create 283 85, timerfd_settime 286 86, timerfd_gettime 287 87, getrandom 318 278, uname 63 160,
    sysinfo 99 179,
"""

# (name, the two numbers, index of the argument that decides, what it may be). Of each the kernel reads 32 bits.
NAMESPACES = 0x7E020000  # the CLONE_NEW* flags of clone; CLONE_NEWTIME exists for unshare and clone3 only
RULES = (
    ("clone", 56, 220, 0, "without", (NAMESPACES,)),
    ("prlimit64", 302, 261, 0, "one of", (0,)),  # its own limits: another's CPU limit of 0 would end it
    ("prctl", 157, 167, 0, "one of", (15, 16)),  # PR_SET_NAME, PR_GET_NAME: threads have names
    # Attributes of files are memory that no limit counts; EPERM, because copying a file gets over that and not ENOSYS.
    ("setxattr", 188, 5, 0, "one of", ()),
    ("lsetxattr", 189, 6, 0, "one of", ()),
    ("fsetxattr", 190, 7, 0, "one of", ()),
)
# Inside bubblewrap there is no network, and nobody else to be killed. AF_UNIX, AF_INET and AF_INET6; AF_VSOCK would
# lead out of a virtual machine.
SOCKETS = ("socket", 41, 198, 0, "one of", (1, 2, 10))
SIGNALS = (("kill", 62, 129), ("tgkill", 234, 131), ("tkill", 200, 130))

ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column of the table, AUDIT_ARCH_*
LOAD, RETURN = 0x20, 0x06  # BPF_LD | BPF_W | BPF_ABS, BPF_RET | BPF_K
EQUAL, GREATER, AT_LEAST, ANY_BIT = 0x15, 0x25, 0x35, 0x45  # BPF_JMP | ... | BPF_K
ALLOW, REFUSE, UNKNOWN = 0x7FFF0000, 0x00050000 | 1, 0x00050000 | 38  # SECCOMP_RET_ALLOW, _ERRNO | EPERM, | ENOSYS
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
OWN_PID = 0x5E1F5E1F  # stands for the process id of the program, which is known only in the process itself


@lru_cache
def seccomp_filter(alone: bool, machine: str = "") -> bytes:
    """The filter as an array of struct sock_filter; b"" for a machine that is not in the table.

    alone: for a program outside bubblewrap. It opens no network sockets and sends signals to itself only: the process
    must put its process id (4 bytes) in the place of `OWN_PID` before it installs the filter.
    """
    machine = machine or os.uname().machine
    if machine not in ARCHITECTURES:
        return b""
    column, architecture = ARCHITECTURES[machine]
    listing = " ".join(line for line in CALLS.splitlines() if not line.strip().startswith("#"))
    numbers = [call.split()[1 + column] for call in listing.strip(" ,").split(",")]
    allowed = [int(number) for number in numbers if number != "-"]
    rules = [*RULES, (*SOCKETS[:-1], (1,)) if alone else SOCKETS]
    if alone:
        rules += [(*call, 0, "one of", (OWN_PID,)) for call in SIGNALS]
    else:
        allowed += [(x86_64, aarch64)[column] for _, x86_64, aarch64 in SIGNALS]
    program = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, architecture), (RETURN, 0, 0, UNKNOWN), (LOAD, 0, 0, NUMBER)]
    for _, *pair, argument, test, values in rules:
        jump, hit, miss = (EQUAL, ALLOW, REFUSE) if test == "one of" else (ANY_BIT, REFUSE, ALLOW)
        block = [(LOAD, 0, 0, ARGUMENTS + 8 * argument)]
        for value in values:
            block += [(jump, 0, 1, value), (RETURN, 0, 0, hit)]
        block += [(RETURN, 0, 0, miss)]
        program += [(EQUAL, 0, len(block), pair[column]), *block]
    for low, high in _runs(allowed):
        program += [(AT_LEAST, 0, 2, low), (GREATER, 1, 0, high), (RETURN, 0, 0, ALLOW)]
    program += [(RETURN, 0, 0, UNKNOWN)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _runs(numbers: list[int]) -> list[list[int]]:
    """[1, 2, 3, 7] -> [[1, 3], [7, 7]]: an instruction for each number would make the filter five times as long."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return runs
