# ruff: noqa: E501 (each program on its line)
"""Programs that try to break out, to cheat or to bring the machine down; for input 7 the right answer is 8."""

import gc
import os
import tempfile
import time

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


class Leftovers:
    """Context manager that fails when processes, zombies, temporary files or descriptors outlive it."""

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
        me, children, strangers = os.getpid(), [], []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{entry}/stat") as file:
                    parent = int(file.read().rpartition(")")[2].split()[1])
                user = os.stat(f"/proc/{entry}").st_uid
            except (FileNotFoundError, ProcessLookupError):
                continue
            if parent == me:
                children.append(entry)
            elif user >= 0x40000000:  # the sandboxes of root
                strangers.append(entry)
        files = [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("sandbox-")]
        return {"children": children, "strangers": strangers, "files": files, "fds": len(os.listdir("/proc/self/fd"))}
