"""Programs of many kinds, each run by plain Python and by the code verifier's harness: both must see the same output."""

import asyncio
import subprocess
import sys

import pytest

from tailrace.reward.code import read_tests, run_tests
from tailrace.reward.sandbox import select_sandbox

STDIN = "3 4\n"
PROGRAMS = {
    "thread": """
import threading,time
def m():
    a,b=map(int,input().split()); time.sleep(.2); print(a+b)
threading.stack_size(1<<27)
threading.Thread(target=m).start()
""",
    "daemon lost": """
import threading,time
threading.Thread(target=lambda:(time.sleep(5),print('no')),daemon=True).start()
print(7)
""",
    "atexit": """
import atexit
atexit.register(print,7)
""",
    "atexit+thread": """
import atexit,threading,time
atexit.register(lambda: print('end'))
threading.Thread(target=lambda:(time.sleep(1),print('t'))).start()
print('m')
""",
    "sys.exit in thread": """
import threading,sys
threading.Thread(target=sys.exit).start()
print(7)
""",
    "raise in thread": """
import threading
threading.Thread(target=lambda:1/0).start()
print(7)
""",
    "os._exit flushes nothing": """
import os
print('lost')
os._exit(0)
""",
    "os._exit after flush": """
import os
print(7,flush=True)
os._exit(0)
""",
    "os.write": r"""
import os
os.write(1,b'7\n')
""",
    "stdout closed": """
import sys
print(7)
sys.stdout.close()
""",
    "stdout None": """
import sys
print(7)
sys.stdout.flush()
sys.stdout=None
""",
    "no fileno": """
import sys,os
class W:
    def write(self,s): os.write(1,s.encode())
    def flush(self): pass
sys.stdout=W()
print(7)
""",
    "no flush": """
import sys,os
class W:
    def write(self,s): os.write(1,s.encode())
sys.stdout=W()
print(7)
""",
    "StringIO": """
import sys,io
o=sys.stdout
sys.stdout=io.StringIO()
print(7)
o.write(sys.stdout.getvalue())
""",
    "buffer": r"""
import sys
d=sys.stdin.buffer.read().split()
sys.stdout.buffer.write(b'%d\n'%sum(map(int,d)))
""",
    "open0": """
print(sum(map(int,open(0).read().split())))
""",
    "open1": r"""
o=open(1,'w')
o.write('7\n')
""",
    "fileinput": """
import fileinput
for l in fileinput.input(): print(sum(map(int,l.split())))
""",
    "os.read": """
import os
print(sum(map(int,os.read(0,os.fstat(0).st_size).split())))
""",
    "mmap": """
import mmap
m=mmap.mmap(0,0,access=mmap.ACCESS_READ)
print(m.read())
""",
    "main guard": """
def main():
    print(sum(map(int,input().split())))
if __name__=='__main__':
    main()
""",
    "dataclass": """
from __future__ import annotations
from dataclasses import dataclass, fields
@dataclass(order=True)
class P:
    a: int
    b: 'int' = 4
print(P(3), [f.type for f in fields(P)])
""",
    "annotations": """
def f(x: int): pass
print(f.__annotations__['x'])
""",
    "hints": """
import typing
class A:
    x: 'A'
print(typing.get_type_hints(A)['x'].__name__)
""",
    "pickle": """
import pickle
class A:
    def __init__(s): s.x=7
print(pickle.loads(pickle.dumps(A())).x)
""",
    "enum namedtuple": """
import enum,collections,pickle
class E(enum.Enum): A=1
N=collections.namedtuple('N','a')
print(pickle.loads(pickle.dumps((E.A,N(2)))))
""",
    "main module": """
import sys,__main__
print(__main__ is sys.modules['__main__'], __main__.__dict__ is globals(), sorted(k for k in globals() if k!='__cached__'))
""",
    "excepthook": """
import sys
sys.excepthook=lambda *a: print('hooked')
print(7)
""",
    "stderr": """
import sys,os
sys.stderr.write('x'*300000)
os.write(2,b'y')
print(7)
""",
    "subprocess": """
import subprocess,sys
subprocess.run([sys.executable,'-I','-S','-c','print(7)'])
""",
    "fork": """
import os
if os.fork()==0:
    print('c',flush=True); os._exit(0)
os.wait()
print('p')
""",
    "child later": """
import os,time
if os.fork()==0:
    time.sleep(.3); os.write(1,b'late'); os._exit(0)
os.write(1,b'early ')
""",
    "fdopen": """
import os,sys
sys.stdout=os.fdopen(1,'w',1)
print(7)
""",
    "dup2": r"""
import os
f=os.dup(1)
print(7)
import sys
sys.stdout.flush()
os.close(1)
os.write(f,b'8\n')
""",
    "detach": """
import sys,io
sys.stdout=io.TextIOWrapper(sys.stdout.detach(),encoding='utf8',line_buffering=True)
print(7)
""",
    "reconfigure": """
import sys
sys.stdout.reconfigure(line_buffering=True)
sys.stdin.reconfigure(encoding='utf-8')
print(input())
""",
    "seek": """
import sys
sys.stdin.read()
sys.stdin.seek(0)
print(sys.stdin.read())
""",
    "exit": """
print(7)
exit()
""",
    "exit msg": """
import sys
print(7)
sys.exit('bad')
""",
    "exit 1": """
import sys
print(7)
sys.exit(1)
""",
    "raise": """
print(7)
1/0
""",
    "SystemExit None": """
raise SystemExit
""",
    "recursion": """
def f(n):
    return 0 if n==0 else 1+f(n-1)
print(f(990))
""",
    "recursion limit": """
import sys
sys.setrecursionlimit(10**6)
def f(n):
    return 0 if n==0 else 1+f(n-1)
print(f(50000))
""",
    "recursion error": """
def f(n):
    try:
        return f(n+1)
    except RecursionError:
        return 'deep'
print(f(0))
""",
    "asyncio": """
import asyncio
async def m():
    await asyncio.sleep(.1); print(7)
asyncio.run(m())
""",
    "signal alarm": """
import signal,time
signal.signal(signal.SIGALRM,lambda *a: print('a'))
signal.setitimer(signal.ITIMER_REAL,.1)
time.sleep(.3)
""",
    "kill self": """
import os,signal
print(7,flush=True)
os.kill(os.getpid(),15)
""",
    "del": """
class A:
    def __del__(s): print('del')
a=A()
""",
    "weakref.finalize": """
import weakref
class A: pass
a=A()
weakref.finalize(a,print,'fin')
""",
    "file": """
print(open(__file__).read()[:5], __name__, __spec__, __doc__)
""",
    "doc": """
'''hi'''
print(__doc__)
""",
    "import self": """
import importlib,sys
if __name__=='__main__':
    import program
    print(program.x)
x=3
""",
    "tempfile": """
import tempfile
with tempfile.TemporaryFile() as f:
    f.write(b'x'); print(f.tell())
""",
    "fsync": """
import os
f=open('o','w');f.write('x');f.flush();os.fsync(f.fileno());print(7)
""",
    "unicode": """
print('é€😀')
""",
    "surrogate": r"""
import sys
sys.stdout.buffer.write(b'\xff')
""",
    "inspect": """
import inspect
def f(): return 1
print(inspect.getsource(f))
""",
    "argv": """
import sys
print(len(sys.argv))
""",
    "input eof": """
input()
try: input()
except EOFError: print('eof')
""",
    "loop stdin": """
import sys
for l in sys.stdin: print(l.strip())
""",
    "iter(input)": """
print(list(iter(lambda: input(),'3 4')) )
""",
    "code fn": """
code=5
print(code, 'Finder' in globals(), 'boot' in globals())
""",
    "mp pool": """
import multiprocessing
def sq(x): return x*x
if __name__=='__main__':
    with multiprocessing.Pool(3) as p: print(sum(p.map(sq, range(100))))
""",
    "ppe": """
from concurrent.futures import ProcessPoolExecutor
def sq(x): return x*x
if __name__=='__main__':
    with ProcessPoolExecutor(2) as p: print(sum(p.map(sq, range(20))))
""",
    "mp daemon": """
import multiprocessing,time
def w(): time.sleep(60)
p=multiprocessing.Process(target=w,daemon=True); p.start()
print(7)
""",
    "tpe": """
from concurrent.futures import ThreadPoolExecutor
ex=ThreadPoolExecutor(2)
ex.submit(lambda: print(7))
""",
    "set_start fork": """
import multiprocessing as m
m.set_start_method('fork')
q=m.SimpleQueue()
p=m.Process(target=q.put,args=(3,));p.start();print(q.get());p.join()
""",
    "runpy": """
import runpy
print(7)
""",
    "doctest": """
def f(x):
    '''
    >>> f(2)
    4
    '''
    return 2*x
import doctest
print(doctest.testmod())
""",
    "exec globals": """
exec('y=1')
print(y)
""",
    "builtins": """
print(type(__builtins__).__name__)
""",
    "PyRival": r"""
import os, sys
from io import BytesIO, IOBase
BUFSIZE = 8192
class FastIO(IOBase):
    newlines = 0
    def __init__(self, file):
        self._fd = file.fileno(); self.buffer = BytesIO(); self.writable = "x" in file.mode or "r" not in file.mode
        self.write = self.buffer.write if self.writable else None
    def read(self):
        while True:
            b = os.read(self._fd, max(os.fstat(self._fd).st_size, BUFSIZE))
            if not b: break
            ptr = self.buffer.tell(); self.buffer.seek(0, 2), self.buffer.write(b), self.buffer.seek(ptr)
        self.newlines = 0
        return self.buffer.read()
    def readline(self):
        while self.newlines == 0:
            b = os.read(self._fd, max(os.fstat(self._fd).st_size, BUFSIZE))
            self.newlines = b.count(b"\n") + (not b)
            ptr = self.buffer.tell(); self.buffer.seek(0, 2), self.buffer.write(b), self.buffer.seek(ptr)
        self.newlines -= 1
        return self.buffer.readline()
    def flush(self):
        if self.writable:
            os.write(self._fd, self.buffer.getvalue())
            self.buffer.truncate(0), self.buffer.seek(0)
class IOWrapper(IOBase):
    def __init__(self, file):
        self.buffer = FastIO(file); self.flush = self.buffer.flush; self.writable = self.buffer.writable
        self.write = lambda s: self.buffer.write(s.encode("ascii")); self.read = lambda: self.buffer.read().decode("ascii")
        self.readline = lambda: self.buffer.readline().decode("ascii")
sys.stdin, sys.stdout = IOWrapper(sys.stdin), IOWrapper(sys.stdout)
input = lambda: sys.stdin.readline().rstrip("\r\n")
a, b = map(int, input().split())
print(a + b)
""",
    "very recursive in a thread": """
import sys,threading
sys.setrecursionlimit(1<<20)
threading.stack_size(1<<26)
def f(n):
    return 0 if n==0 else 1+f(n-1)
threading.Thread(target=lambda: print(f(100000))).start()
""",
    "codecs": """
import codecs,sys
sys.stdout=codecs.getwriter('utf-8')(sys.stdout.buffer)
print('é')
""",
    "fdopen buf": """
import os,sys
sys.stdout=os.fdopen(sys.stdout.fileno(),'w',1024)
print(7)
""",
    "unbuffered": """
import os,sys
sys.stdout=os.fdopen(1,'wb',0)
sys.stdout.write(b'7')
""",
    "write_through": """
import io,sys
sys.stdout=io.TextIOWrapper(open(1,'wb',0),write_through=True)
print(7)
""",
    "stdin StringIO": """
import io,sys
sys.stdin=io.StringIO(sys.stdin.read())
print(input())
""",
    "stdin open0": """
import sys
sys.stdin=open(0)
print(input())
""",
    "/dev/stdout": """
open('/dev/stdout','w').write('7')
""",
    "readline override": """
import sys
input=sys.stdin.readline
print(input())
""",
    "bytesio out": """
import sys,io
out=io.BytesIO()
import atexit
atexit.register(lambda: sys.stdout.buffer.write(out.getvalue()))
out.write(b'7')
""",
    "atexit lambda sys.stdout": """
import sys,os,atexit,io
sys.stdout=io.StringIO()
atexit.register(lambda: os.write(1,sys.stdout.getvalue().encode()))
print(7)
""",
    "print obj": """
class O:
    def __init__(s): s.b=[]
    def write(s,x): s.b.append(x)
    def flush(s):
        import os
        os.write(1,''.join(s.b).encode()); s.b=[]
import sys
sys.stdout=O()
print(7)
""",
    "__del__ flush": """
import sys,os
class O:
    b=''
    def write(s,x): s.b+=x
    def __del__(s): os.write(1,s.b.encode())
    def flush(s): pass
o=O()
o.write('7')
""",
    "redirect": """
import contextlib,io
f=io.StringIO()
with contextlib.redirect_stdout(f): print(1)
print(f.getvalue())
""",
    "logging": """
import logging,sys
logging.basicConfig(stream=sys.stdout,level=20)
logging.info('x')
""",
    "thread pool late": """
from concurrent.futures import ThreadPoolExecutor
import time
def w():
    time.sleep(.3); print(7)
ThreadPoolExecutor().submit(w)
""",
    "thread from thread": """
import threading,time
def b():
    time.sleep(.1); print('b')
def a():
    threading.Thread(target=b).start(); print('a')
threading.Thread(target=a).start()
""",
    "timer": """
import threading
threading.Timer(.2,print,(7,)).start()
""",
    "_thread": """
import _thread,time
_thread.start_new_thread(lambda: print(7,flush=True),())
time.sleep(.3)
""",
    "exit in main w/ thread": """
import threading,time,sys
threading.Thread(target=lambda:(time.sleep(.2),print('t'))).start()
print('m')
sys.exit(0)
""",
    "KeyboardInterrupt": """
raise KeyboardInterrupt
""",
    "umask nothing": """
import resource
print(resource.getrlimit(resource.RLIMIT_CORE)[0])
""",
    "cprofile": """
import cProfile
def f(): return 7
cProfile.run('f()') if False else print(f())
""",
    "lru": """
import functools
@functools.lru_cache(None)
def f(n): return n if n<2 else f(n-1)+f(n-2)
print(f(300))
""",
    "deep gen": """
import sys
sys.setrecursionlimit(10000)
from types import GeneratorType
def bootstrap(f,stack=[]):
    def w(*a,**k):
        if stack: return f(*a,**k)
        to=f(*a,**k)
        while True:
            if type(to) is GeneratorType:
                stack.append(to); to=next(to)
            else:
                stack.pop()
                if not stack: break
                to=stack[-1].send(to)
        return to
    return w
@bootstrap
def s(n):
    if n==0: yield 0
    r=yield s(n-1)
    yield r+1
print(s(5000))
""",
    "heavy stack main": """
import sys,resource
sys.setrecursionlimit(10**6)
try: resource.setrlimit(resource.RLIMIT_STACK,(1<<27,-1))
except Exception: pass
print(7)
""",
    "input splitlines": """
import sys
print(sys.stdin.read().splitlines())
""",
    "stdin fileno": """
import sys
for f in (sys.stdin, sys.stdout, sys.stderr): print(f.fileno(), f.name, f.mode, f.encoding, f.errors, f.isatty())
print(sys.stdin.seekable())
""",
    "select stdin": """
import select,sys
print(bool(select.select([sys.stdin],[],[],1)[0]))
""",
    "asyncio subprocess": """
import asyncio,sys
async def m():
    p=await asyncio.create_subprocess_exec(sys.executable,'-I','-S','-c','print(7)',stdout=-1)
    print((await p.communicate())[0])
asyncio.run(m())
""",
    "match": """
match [1,2]:
    case [a,b]: print(a,b)
""",
    "walrus future": """
from __future__ import division, print_function, annotations
print(1/2)
""",
    "global main": """
import sys
x=1
def f():
    m=sys.modules['__main__']; m.x=5
f()
print(x)
""",
    "unpickle main": """
import pickle,io,sys
class P: pass
assert P.__module__=='__main__'
print(pickle.dumps(P)[:30])
""",
    "timeit": """
import timeit
x=3
print(timeit.timeit('x', globals=globals(), number=1) < 1, timeit.timeit('from __main__ import x', number=1)<1)
""",
    "exit code bool": """
import sys
print(7)
sys.exit(False)
""",
    "exit 120": """
import sys
print(7)
sys.exit(120)
""",
    "coding": """
# -*- coding: latin-1 -*-
print('é')
""",
    "tabs": """
if 1:
	print(7)
""",
    "a mark of the encoding": "\ufeffprint(7)\n",
    "ends of lines of Windows": "print(7)\r\nif 1:\r\n    print(8)\r\n",
    "a form feed": "\x0cprint(7)\n",
    "no end of line": "print(7)",
    "a zero byte": "print(7)\n\x00",
}


@pytest.fixture(scope="module")
def judged():
    with asyncio.Runner() as runner:
        sandbox = select_sandbox()

        def judge(program, stdout):
            row = {"tests": [{"stdin": STDIN, "stdout": stdout}]}
            return runner.run(run_tests(sandbox, program, read_tests(row), 20.0)).right

        yield judge
        runner.run(sandbox.close())


def plain(program, folder):
    """Exit status and output of the program under plain Python, its input a file."""
    (folder / "program.py").write_bytes(program.encode())
    (folder / "input").write_text(STDIN)
    command = [sys._base_executable, "-I", "-X", "utf8", "program.py"]
    with (folder / "input").open() as stdin:
        done = subprocess.run(command, cwd=folder, stdin=stdin, capture_output=True, timeout=60)
    return done.returncode, done.stdout.decode("utf-8", "replace")


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.cases(30)
def test_programs_end_as_under_plain_python(judged, tmp_path, name):
    status, stdout = plain(PROGRAMS[name], tmp_path)
    assert judged(PROGRAMS[name], stdout) is (status in (0, 120))


def test_another_output_is_wrong(judged):
    assert not judged(PROGRAMS["thread"], "8\n")
    assert not judged(PROGRAMS["os._exit flushes nothing"], "lost\n")
