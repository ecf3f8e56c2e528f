"""A message that is remembered as it is written takes the memory that it counts as."""

import subprocess
import sys

import pytest

from conclave.wire.formats import Format

COUNT, BODY_BYTES = 20_000, 1024

WRITE_MANY = f"""
import os, resource, sys
from conclave.system.process_limits import set_mmap_threshold
from conclave.wire import page_writer
from conclave.wire.formats import Format

def resident():
    with open("/proc/self/statm") as numbers:
        return int(numbers.read().split()[1]) * resource.getpagesize()

set_mmap_threshold()
write, sender, body = page_writer.message_writer(Format(sys.argv[1])), os.urandom(16), os.urandom({BODY_BYTES})
before = resident()
kept = [write(number, sender, body, 1_700_000_000, 0) for number in range({COUNT})]
print((resident() - before) / sum(map(len, kept)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux how much memory the process has")
@pytest.mark.parametrize("written_in", list(Format))
def test_what_is_written_takes_little_more_than_its_bytes(written_in: Format) -> None:
    asked = [sys.executable, "-c", WRITE_MANY, written_in.value]
    times = float(subprocess.run(asked, check=True, capture_output=True, text=True).stdout)
    assert times < 1.3
