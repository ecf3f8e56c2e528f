"""Starts programs that do not outlive the process that starts them.

The kernel sends them a signal when that process ends, however it ends. Run as a program, this module runs another
program in that way. Elsewhere than on Linux that program runs as any other would.
"""

import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def tied(*command: str, by: signal.Signals = signal.SIGKILL) -> list[str]:
    """Return a command that runs ``command``, and signals it when the thread that starts it ends.

    ``by``: the signal. The thread has to live as long as the program may. Ctrl-C and the end of a terminal, which would
    reach the program too, are for the process that starts it. Processes that the program starts itself are not tied.

    The signal is asked for 20 ms after the start. A process that is stopped (SIGSTOP) before, and whose parent dies
    then, stays until it is continued, and ends at once: uvloop can have nothing done between fork and exec.
    """
    # -I and -S: nothing of the working directory or of installed packages is loaded, and it takes 20 ms.
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(by.value), *command]


def _main() -> None:
    parent, by, *command = sys.argv[1:]
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - not needed by an import of this module

        if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(int(by))):
            sys.exit("the end of another process cannot be waited for here")
        if os.getppid() != int(parent):
            sys.exit("the process that started this one has ended")
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them for itself
        signal.signal(number, signal.SIG_DFL)
    os.execvp(command[0], command)  # noqa: S606 - there is to be no shell


if __name__ == "__main__":
    _main()
