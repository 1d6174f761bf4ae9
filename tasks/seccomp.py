"""A seccomp filter for untrusted programs: it refuses system calls that no computation needs.

Refused are new processes and sockets, so that limits count all memory; memory that no limit counts (memfd, System V
and message queues, keyrings, attributes of files, spliced pages); other processes (ptrace, process_vm_*, scheduling);
namespaces and mounts; and what kernel exploits are fond of (bpf, userfaultfd, perf). Threads are allowed. Of the calls
since Linux 5.1, which have one number on all machines, six are allowed; the kernel seems to lack all others.
"""

import os
import struct

# name, number on x86_64, number on aarch64; "-": that machine does not have it
DENIED = """
    fork 57 -, vfork 58 -, execve 59 221, execveat 322 281, socket 41 198, socketpair 53 199, memfd_create 319 279,
    shmget 29 194, semget 64 190, msgget 68 186, mq_open 240 180, add_key 248 217, request_key 249 218,
    keyctl 250 219, setxattr 188 5, lsetxattr 189 6, fsetxattr 190 7, splice 275 76, tee 276 77, vmsplice 278 75,
    ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, kcmp 312 272, setpriority 141 140,
    ioprio_set 251 30, sched_setparam 142 118, sched_setscheduler 144 119, sched_setaffinity 203 122,
    sched_setattr 314 274, personality 135 92, unshare 272 97, setns 308 268, mount 165 40, chroot 161 51,
    pivot_root 155 41, bpf 321 280, userfaultfd 323 282, perf_event_open 298 241, fanotify_init 300 262,
    io_setup 206 0, seccomp 317 277
"""
NEW = 424  # the first call since Linux 5.1
ALLOWED = (436, 437, 439, 441, 449, 452)  # close_range, openat2, faccessat2, epoll_pwait2, futex_waitv, fchmodat2

# numbers on both machines, index of the argument that decides, test, value, is the call allowed if it holds?
EQUAL, ANY_BIT, AT_LEAST = 0x15, 0x45, 0x35  # BPF_JMP | BPF_JEQ | BPF_K, BPF_JSET, BPF_JGE
RULES = (
    ((56, 220), 0, ANY_BIT, 0x10000, True),  # clone: threads (CLONE_THREAD) only
    ((302, 261), 0, EQUAL, 0, True),  # prlimit64: its own limits; another's CPU limit of 0 would end it
    ((72, 25), 1, EQUAL, 1031, False),  # fcntl: F_SETPIPE_SZ makes pipes of a megabyte
)

MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column of the table, AUDIT_ARCH_*
LOAD, RETURN = 0x20, 0x06  # BPF_LD | BPF_W | BPF_ABS, BPF_RET | BPF_K
ALLOW, REFUSE, UNKNOWN = 0x7FFF0000, 0x00050000 | 1, 0x00050000 | 38  # SECCOMP_RET_ALLOW, _ERRNO | EPERM, | ENOSYS


def seccomp_filter(machine: str = os.uname().machine) -> bytes:
    """The filter as an array of struct sock_filter; b"" for a machine that is not in the table."""
    if machine not in MACHINES:
        return b""
    column, architecture = MACHINES[machine]
    # offsets in struct seccomp_data: 0 number, 4 architecture, 16 + 8 * n lower half of argument n
    program = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, architecture), (RETURN, 0, 0, UNKNOWN), (LOAD, 0, 0, 0)]
    for numbers, argument, test, value, allowed in RULES:
        block = [(LOAD, 0, 0, 16 + 8 * argument), (test, 0, 1, value)]
        block += [(RETURN, 0, 0, ALLOW if answer else REFUSE) for answer in (allowed, not allowed)]
        program += [(EQUAL, 0, len(block), numbers[column]), *block]
    verdicts = {call.split()[1 + column]: REFUSE for call in DENIED.split(",")} | dict.fromkeys(ALLOWED, ALLOW)
    verdicts.pop("-", None)
    for number, verdict in verdicts.items():
        program += [(EQUAL, 0, 1, int(number)), (RETURN, 0, 0, verdict)]
    program += [(AT_LEAST, 0, 1, NEW), (RETURN, 0, 0, UNKNOWN), (RETURN, 0, 0, ALLOW)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
