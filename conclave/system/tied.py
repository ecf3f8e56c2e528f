"""Programs that do not outlive the process that starts them: the kernel tells them of its end, however it ends.

As a program this runs another one so. Elsewhere than on Linux that one runs as any other would.
"""

import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def tied(*command: str, by: signal.Signals = signal.SIGKILL) -> list[str]:
    """Return the command that runs ``command``, which gets the signal ``by`` when the thread ends that starts it.

    So that thread has to live as long as the program may. Ctrl-C and the end of a terminal, which would reach the
    program too, are for whoever starts it. What the program starts itself is tied to nobody.
    """
    # -I and -S: nothing of the working directory or of installed packages has a part in it, and it takes 20 ms.
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(by.value), *command]


def _main() -> None:
    parent, by, *command = sys.argv[1:]
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - for nobody who only imports this

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
