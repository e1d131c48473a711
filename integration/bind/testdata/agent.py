# SPDX-License-Identifier: Apache-2.0
# Runs in the guest: evaluates one line of Python after the other, and answers each
# with its value, or with the name of the error.
import ctypes, errno, fcntl, mmap, os, shutil, signal, socket, stat, subprocess, sys, threading

scope = dict(globals())
print("ready", flush=True)
for line in sys.stdin:
    try:
        try:
            code = compile(line.strip(), "line", "eval")
        except SyntaxError:
            exec(line.strip(), scope)
            value = None
        else:
            value = eval(code, scope)
        print(repr(value), flush=True)
    except OSError as e:
        print("error " + errno.errorcode.get(e.errno, str(e)), flush=True)
    except BaseException as e:
        print("error " + type(e).__name__ + " " + str(e), flush=True)
