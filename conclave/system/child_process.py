"""Runs programs that end with their parent process.

The kernel signals the program when its parent ends or is killed (PR_SET_PDEATHSIG). Run as a program, this
module sets that up and executes another program. On other systems than Linux the program is just executed.
"""

import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def parent_bound_command(*command: str, death_signal: signal.Signals = signal.SIGKILL) -> list[str]:
    """Return a command that runs ``command``, which gets ``death_signal`` when the thread that starts it ends.

    So that thread must run at least as long as the program. The program ignores SIGINT and SIGHUP of its terminal,
    which its parent handles. Processes that the program starts itself are not affected.

    The signal is set up about 20 ms after the start, since uvloop cannot run code between fork and exec. A process
    that is stopped (SIGSTOP) before that, and whose parent ends in between, ends once it is continued.
    """
    # -I and -S: load nothing from the working directory or installed packages. The start takes 20 ms.
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(death_signal.value), *command]


def _main() -> None:
    parent, death_signal, *command = sys.argv[1:]
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - not needed by an import of this module

        if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(int(death_signal))):
            sys.exit("this system has no parent death signals (PR_SET_PDEATHSIG)")
        if os.getppid() != int(parent):
            sys.exit("the process that started this one has ended")
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them for itself
        signal.signal(number, signal.SIG_DFL)
    os.execvp(command[0], command)  # noqa: S606 - without a shell


if __name__ == "__main__":
    _main()
