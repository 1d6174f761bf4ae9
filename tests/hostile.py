# ruff: noqa: E501 (each program on its line)
"""Programs that try to break out, to cheat or to bring the machine down; for input 7 the right answer is 8."""

import gc
import os
import platform
import tempfile
import time
from pathlib import Path

import pytest

from tasks import sandbox

needs_bubblewrap = pytest.mark.skipif(
    bool(sandbox._bubblewrap_problem()), reason=f"programs cannot run: {sandbox._bubblewrap_problem()}"
)

FORGE = "print('passed'); print('score: 1.0'); print('{\"status\": \"ok\", \"score\": 1}')\n"

HOSTILE = {
    # forged verdicts
    "fake verdict and files": FORGE
    + "import os\nfor p in ('', '../', '../../', '/tmp/'):\n for n in ('reward.txt', 'result.json'):\n  try: open(p + n, 'w')"
    ".write('1.5')\n  except OSError: pass\nos._exit(0)",
    "os._exit before anything": "import os; os._exit(0)",
    "right answer, failing exit": "print(8, flush=True); raise SystemExit(1)",
    "right answer, then os._exit(1)": "import os; print(8, flush=True); os._exit(1)",
    "right answer, then abort": "import os; print(8, flush=True); os.abort()",
    "right answer, then exception": "print(8); 1/0",
    "right answer, then sleep": "print(8, flush=True); import time; time.sleep(100)",
    "right answer from a thread that never ends": "import threading, time; print(8, flush=True)\n"
    "t = threading.Thread(target=time.sleep, args=(100,)); t.start()",
    "kills itself after the answer": "import os; print(8, flush=True); os.kill(os.getpid(), 9)",
    "atexit fails": "import atexit, os; print(8); atexit.register(lambda: os._exit(7))",
    "forged reply frame": "import os, struct\nfor fd in range(256):\n try: os.write(fd, struct.pack('<BBII', 0, 1, 2, 0) + b'8\\n')\n"
    " except OSError: pass",
    "patched builtins": "import builtins, json, sys\nbuiltins.print = lambda *a: None\njson.dumps = json.dump = None\n"
    "builtins.int = builtins.str = None; print(8)",
    "nan": "print('nan')",
    "equal to everything": "class E(str):\n def __eq__(s, o): return True\n __hash__ = str.__hash__\nprint(E('9'))",
    "every number": "for n in range(100): print(n)",
    "trace hook": "import sys\nsys.settrace(lambda *a: 1/0); print(int(input()) - 1)",
    "excepthook hides the error": "import sys, os\nsys.excepthook = lambda *a: os._exit(0)\n1/0",
    # exhausting the machine
    "fork bomb": "import os\nwhile True: os.fork()",
    "fork bomb that waits": "import os\nwhile True:\n try: os.fork()\n except OSError: pass",
    "shell fork bomb": "import os; os.system(':(){ :|:& };:'); import time; time.sleep(100)",
    "thread bomb": "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(100,)).start()",
    "memory bomb": "x = [0] * 10**10",
    "slow memory bomb": "x = []\nwhile True: x.append(bytearray(10**7))",
    "memory bomb caught": "x = []\nwhile True:\n try: x.append(bytearray(10**8))\n except MemoryError: pass",
    "memory in children": "import os\nfor _ in range(4): os.fork()\nx = bytearray(10**8)\nwhile True: pass",
    "endless output": "while True: print('x' * 1000)",
    "endless errors": "import sys\nwhile True: print('x' * 1000, file=sys.stderr)",
    "endless output of children": "import os\nos.fork(); os.fork()\nwhile True: print('x' * 1000)",
    "big file": "f = open('big', 'wb')\nwhile True: f.write(bytes(10**6))",
    "many files": "i = 0\nwhile True:\n i += 1; open(str(i), 'w').write('x')",
    "deep folders": "import os\nwhile True: os.mkdir('d'); os.chdir('d')",
    "descriptors": "x = []\nwhile True: x.append(open('/dev/null'))",
    "pipes full": "import os\nr, w = os.pipe()\nwhile True: os.write(w, bytes(65536))",
    "huge integer": "print(9 ** 9 ** 9)",
    "huge text of an integer": "import sys; sys.set_int_max_str_digits(0); print(10 ** 10 ** 7)",
    "huge exponent": "print('1e999999999')",
    "recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef f(): return f()\nf()",
    "recursion in C": "import sys\nsys.setrecursionlimit(10**9)\nx = []\nfor _ in range(10**6): x = [x]\nrepr(x)",
    "nested source": "eval('(' * 10**6)",
    "segmentation fault": "import ctypes; ctypes.string_at(0)",
    "regex": "import re; re.match('(a+)+$', 'a' * 60 + 'b')",
    "busy loop": "while True: pass",
    # not dying
    "signals ignored": "import signal\nfor s in range(1, 65):\n try: signal.signal(s, signal.SIG_IGN)\n"
    " except (OSError, ValueError): pass\nwhile True: pass",
    "signal handler forks": "import signal, os\nsignal.signal(signal.SIGTERM, lambda *a: os.fork())\nwhile True: pass",
    "raised limits": "import resource\nfor r in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_NPROC):\n"
    " resource.setrlimit(r, (resource.RLIM_INFINITY,) * 2)\nprint(8)",
    "setsid": "import os, time\nif os.fork() == 0:\n os.setsid(); time.sleep(1000)",
    "double fork": "import os, time\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0:\n  time.sleep(1000)\n os._exit(0)",
    "double fork keeps the pipes": "import os, time\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0:\n  print('x', flush=True)"
    "\n  time.sleep(1000)",
    "stops itself": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "stops its supervisor": "import os, signal; os.kill(os.getppid(), signal.SIGSTOP)",
    "kills everything it can": "import os, signal\ntry: os.kill(-1, signal.SIGKILL)\nexcept OSError: pass\nos.killpg(0, 9)",
    "zombies": "import os, time\nfor _ in range(10):\n if os.fork() == 0: os._exit(0)\ntime.sleep(100)",
    "closes everything": "import os\nos.closerange(0, 1000)\nwhile True: pass",
    "closes its output": "import os\nos.close(1); os.close(2); import time; time.sleep(100)",
    "exec sleep": "import os; os.execv('/bin/sleep', ['sleep', '1000'])",
    "nohup shell": "import subprocess; subprocess.Popen(['/bin/sh', '-c', 'trap \"\" 1 2 15; sleep 1000'], start_new_session=True)",
    # looking around
    "environment": "import os; print(os.environ['SECRET_TOKEN'])",
    "parent's memory": "import os; print(open(f'/proc/{os.getppid()}/environ').read())",
    "parent's frames": "import sys\nf = sys._getframe()\nwhile f: print(f.f_globals.get('tests'), f.f_locals); f = f.f_back",
    "everything in memory": "import gc\nprint([o for o in gc.get_objects() if isinstance(o, dict) and 'output' in o])",
    "importing us": "import code_env; print(code_env)",
    "ptrace": "import ctypes, os; print(ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0))",
    "locks its folder": "import os; os.chmod('.', 0); print(int(input()) - 1)",
    "removes its folder": "import os; os.rmdir(os.getcwd())",
}

# System calls that a program has no business with: (numbers on x86_64 and aarch64, arguments of a call that works).
REFUSED = {
    "memfd_create": (319, 279, "b'x', 0"),
    "memfd_secret": (447, 447, "0"),
    "shmget": (29, 194, "77, 4096, 0o1666"),
    "semget": (64, 190, "77, 1, 0o1666"),
    "msgget": (68, 186, "77, 0o1666"),
    "mq_open": (240, 180, "b'hostile', 0o102, 0o666, None"),
    "add_key": (248, 217, "b'user', b'hostile', b'x', 1, -4"),
    "request_key": (249, 218, "b'user', b'hostile', None, -4"),
    "keyctl": (250, 219, "0, -4, 1"),
    "ptrace": (101, 117, "0, 0, 0, 0"),
    "process_vm_readv": (310, 270, "os.getppid(), None, 0, None, 0, 0"),
    "process_vm_writev": (311, 271, "os.getppid(), None, 0, None, 0, 0"),
    "pidfd_open": (434, 434, "os.getpid(), 0"),
    "kcmp": (312, 272, "os.getpid(), os.getpid(), 0, 0, 0"),
    "io_uring_setup": (425, 425, "4, bytes(120)"),
    "io_setup": (206, 0, "1, bytes(8)"),
    "unshare a user namespace": (272, 97, "0x10000000"),
    "unshare files": (272, 97, "0x400"),
    "clone a user namespace": (56, 220, "0x10000011, 0, 0, 0, 0"),
    "clone a user and a process namespace": (56, 220, "0x30000011, 0, 0, 0, 0"),
    "clone3": (435, 435, "bytes(64), 64"),
    "setns": (308, 268, "0, 0"),
    "mount": (165, 40, "b'x', b'/tmp', b'tmpfs', 0, None"),
    "fsopen": (430, 430, "b'tmpfs', 0"),
    "open_tree": (428, 428, "-100, b'/', 0"),
    "pivot_root": (155, 41, "b'.', b'.'"),
    "chroot": (161, 51, "b'.'"),
    "bpf": (321, 280, "0, bytes(72), 72"),
    "userfaultfd": (323, 282, "1"),
    "perf_event_open": (298, 241, "b'\\1\\0\\0\\0' + bytes(124), 0, -1, -1, 8"),
    "fanotify_init": (300, 262, "0x200, 0"),
    "sethostname": (170, 161, "b'x', 1"),
    "personality": (135, 92, "0x0040000"),
    "setpriority of everybody": (141, 140, "2, 0, 19"),
    "sched_setscheduler": (144, 119, "os.getppid(), 0, bytes(4)"),
    "sched_setaffinity of its parent": (203, 122, "os.getppid(), 8, b'\\1' + bytes(7)"),
    "prlimit of its parent": (302, 261, "os.getppid(), 0, bytes(16), None"),
    "seccomp": (317, 277, "2, 0, None"),
    "vsock": (41, 198, "40, 1, 0"),
    "netlink": (41, 198, "16, 3, 0"),
    "kernel crypto": (41, 198, "38, 5, 0"),
    "packets": (41, 198, "17, 3, 0"),
    "memfd_create in the x32 numbering": (319 | 1 << 30, 279, "b'x', 0"),
}
COLUMN = {"x86_64": 0, "aarch64": 1}.get(platform.machine())  # None: no filter for this machine
BREACHES = {  # each prints the right answer when it gets what it wants
    name: "import ctypes, os\nlibc = ctypes.CDLL(None)\n"
    f"print(8 if libc.syscall({numbers[COLUMN]}, {arguments}) >= 0 else 7)"
    for name, (*numbers, arguments) in REFUSED.items()
    if COLUMN is not None
}
TRY = "import os\ndef wins(f, *args):\n try: f(*args)\n except OSError: return False\n return True\n"
BREACHES |= {
    "two gigabytes of memfd": TRY
    + "def grab():\n f = os.memfd_create('x')\n for _ in range(2000): os.write(f, bytes(10**6))\n"
    "print(8 if wins(grab) else 7)",
    "shared memory files": TRY
    + "print(8 if any(wins(open, p + 'hostile-x', 'w') for p in ('/dev/shm/', '/var/tmp/', '/', '/run/')) else 7)",
    "two gigabytes of files": TRY
    + "def grab():\n for n in range(2000): open('/tmp/hostile-%d' % n, 'wb').write(bytes(10**6))\n"
    "print(8 if wins(grab) else 7)",
    "terminal": TRY
    + "print(8 if wins(os.open, '/dev/tty', os.O_RDWR) or any(wins(os.open, '/dev/pts/%d' % n, 1) for n in range(9)) else 7)",
    "memory of its supervisor": TRY + "print(8 if wins(open, '/proc/%d/mem' % os.getppid(), 'r+b') else 7)",
    "attributes of files": TRY + "open('f', 'w')\nprint(8 if wins(os.setxattr, 'f', 'user.x', bytes(60000)) else 7)",
    "network": "import socket\ntry: socket.create_connection(('127.0.0.1', 22), 1); print(8)\nexcept OSError: print(7)",
    "32-bit system call": "import ctypes, mmap\n"
    "m = mmap.mmap(-1, 4096, prot=7); m.write(bytes.fromhex('b814000000cd80c3'))\n"  # mov eax, 20 (getpid); int 0x80; ret
    "f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))\nprint(8 if f() > 0 else 7)",
    "kills by group": TRY
    + "print(8 if wins(os.kill, 0, 0) and os.getpgrp() != os.getpid() and os.getpid() > 99 else 7)",
}
FOLDERS = {  # each makes trouble for those who tidy up
    "moves its folder and leaves a link": "import os\nhere = os.getcwd()\n"
    "for path in (here, os.path.dirname(here)):\n"
    " try: os.rename(path, path + '-hostile'); os.symlink('VICTIM', path)\n"
    " except OSError as error: print(error)",
    "links to a folder": "import os\nos.symlink('VICTIM', 'a'); os.mkdir('b'); os.symlink('VICTIM/secret', 'b/c'); os.symlink('..', 'b/d')",
    "locked all at once": "import os\nos.makedirs('a/b/c/d'); open('a/b/x', 'w')\nfor p in ('a/b/c/d', 'a/b/c', 'a/b', 'a', '.'): os.chmod(p, 0)",
    "deep": "import os\nfor _ in range(200): os.mkdir('d'); os.chdir('d')",
    "deep and wide": "import os\nfor n in range(60):\n for m in range(4): os.mkdir(str(m))\n os.chdir('3')",
    "fifo and socket": "import os, socket\nos.mkfifo('f'); socket.socket(socket.AF_UNIX).bind('s')",
    "odd names": "import os\nfor n in (b'\\xff', b'-rf', b'a\\nb', b'*', b' '): os.mkdir(n); open(n + b'/' + n, 'w')",
    "takes its folder away": "import os\nos.rmdir(os.getcwd()); os.rmdir('..')",
}
HOSTILE |= BREACHES | FOLDERS
HOSTILE |= {
    "empties its input": "import os\nfor p in (0, '/dev/stdin'):\n try: os.truncate(p, 0)\n except OSError: pass\nprint(7)",
    "outlives its supervisor": "import ctypes, os, time\nctypes.CDLL(None).prctl(1, 0)\n"
    "try: os.kill(os.getppid(), 9)\nexcept OSError: pass\ntime.sleep(100)",
    "kills its session": "import os\nlibc = __import__('ctypes').CDLL(None)\n"
    f"libc.syscall({(234, 131)[COLUMN or 0]}, os.getppid(), os.getppid(), 9)\n"
    "for pid in (0, -1, os.getppid(), -os.getsid(0)):\n try: os.kill(pid, 9)\n except OSError: pass",
    "holds locks": "import fcntl, os, time\nfcntl.flock(os.open(os.__file__, 0), fcntl.LOCK_EX); time.sleep(100)",
    "pipes full of memory": "import os, fcntl\nwhile True:\n r, w = os.pipe(); fcntl.fcntl(w, 1031, 1 << 20); os.write(w, bytes(1 << 20))",
}
# A safety catch: outside of a sandbox these would end every process of their user.
CAGED = "import os\nif os.path.exists('/proc/1'): raise SystemExit('not in a sandbox')\n"
HOSTILE = {name: CAGED + code for name, code in HOSTILE.items()}


class Leftovers:
    """Context manager that fails when anything outlives it: processes, zombies, files, descriptors."""

    def __enter__(self):
        gc.collect()
        self.before = self.count()

    def __exit__(self, kind, *_):
        if kind is None:
            deadline = time.monotonic() + 3  # other programs of the machine come and go: give them time
            while self.count() != self.before and time.monotonic() < deadline:
                time.sleep(0.05)
            assert self.count() == self.before, "left behind, or another run of these tests on this machine"

    @staticmethod
    def count():
        children = [Path(f"/proc/self/task/{thread}/children").read_text() for thread in os.listdir("/proc/self/task")]
        places = [place for place in ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue") if os.path.isdir(place)]
        files = [name for place in places for name in os.listdir(place) if "hostile" in name]
        files += [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("sandbox-")]
        return {
            "children": sorted(pid for pids in children for pid in pids.split()),
            "files": files,
            "fds": len(os.listdir("/proc/self/fd")),
        }
