"""The library by numbers and sizes alone, as a language without a C compiler sees it:
`abi.py LIBRARY VERSION FILE`."""

import ctypes
import errno
import os
import sys
from ctypes import POINTER, Structure, byref
from ctypes import c_char_p, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

OP_NOP, OP_READ, OP_OPEN, OP_CLOSE = 0, 1, 5, 6
NONE_LEFT = -1  # nanoseconds of a wait without a limit


class LoopOptions(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("request_size", c_size_t),
        ("result_size", c_size_t),
        ("under_way_max", c_uint32),
        ("flags", c_uint32),
    ]


class QueueOptions(Structure):
    _fields_ = LoopOptions._fields_ + [("threads", c_uint32), ("reserved", c_uint32)]


class Request(Structure):
    _fields_ = [
        ("op", c_uint32),
        ("options", c_uint32),
        ("token", c_uint64),
        ("file", c_void_p),
        ("buf", c_void_p),
        ("len", c_size_t),
        ("offset", c_uint64),
        ("ticket", c_uint64),
        ("flags", c_uint32),
        ("fd", c_int32),
        ("file2", c_void_p),
        ("fd2", c_int32),
        ("arg", c_uint32 * 3),
        ("path", c_char_p),
        ("path2", c_char_p),
        ("offset2", c_uint64),
    ]


class Result(Structure):
    _fields_ = [
        ("token", c_uint64),
        ("value", c_int64),
        ("file", c_void_p),
        ("flags", c_uint32),
        ("reserved", c_uint32),
        ("memory", c_void_p),
        ("lent", c_uint64),
    ]


def load(path):
    sakia = ctypes.CDLL(path)
    results = [POINTER(Result), c_size_t]
    for kind, options in (("loop", LoopOptions), ("queue", QueueOptions)):
        for name, value, arguments in (
            ("new", c_int32, [POINTER(options), POINTER(c_void_p)]),
            ("free", c_int32, [c_void_p]),
            ("submit", c_int64, [c_void_p, POINTER(Request), c_size_t, POINTER(Result), POINTER(c_size_t)]),
            ("take", c_int64, [c_void_p, *results]),
            ("wait", c_int64, [c_void_p, *results, c_int64]),
            ("under_way", c_int64, [c_void_p]),
        ):
            function = getattr(sakia, f"sakia_{kind}_{name}")
            function.restype, function.argtypes = value, arguments
    sakia.sakia_file_unref.restype, sakia.sakia_file_unref.argtypes = None, [c_void_p]
    sakia.sakia_version.restype = c_uint32
    sakia.sakia_last_error.restype = c_char_p
    return sakia


class Ring:
    """A loop or a queue."""

    def __init__(self, sakia, kind, options):
        self.sakia, self.kind, self.handle = sakia, kind, c_void_p()
        made = self.call("new", byref(options), byref(self.handle), is_of_handle=False)
        if made < 0:
            assert self.handle.value is None
            raise OSError(-made, sakia.sakia_last_error().decode())

    def call(self, name, *arguments, is_of_handle=True):
        first = (self.handle,) if is_of_handle else ()
        return getattr(self.sakia, f"sakia_{self.kind}_{name}")(*first, *arguments)

    def perform(self, **fields):
        """Submits a request, and returns its result, which may be there at once."""
        request, result, done = Request(token=2**64 - 7, **fields), Result(), c_size_t()
        assert self.call("submit", byref(request), 1, byref(result), byref(done)) == 1
        count = done.value
        while count == 0:
            count = self.call("wait", byref(result), 1, NONE_LEFT)
        assert count == 1 and result.token == 2**64 - 7 and result.reserved == 0, (count, result.token)
        assert self.call("under_way") == 0 and self.call("take", byref(result), 1) == 0
        return result


def sized(options):
    return options(ctypes.sizeof(options), ctypes.sizeof(Request), ctypes.sizeof(Result))


def read_a_file(ring, path):
    bytes_of = os.urandom(10_000)
    with open(path, "wb") as file:
        file.write(bytes_of)
    opened = ring.perform(op=OP_OPEN, path=path.encode(), flags=os.O_RDONLY)
    assert opened.value == 0 and opened.file is not None, opened.value
    memory = ctypes.create_string_buffer(16_384)
    at = ctypes.addressof(memory)
    read = ring.perform(op=OP_READ, file=opened.file, buf=at, len=16_384, offset=1)
    assert read.value == 9_999 and read.file is None and memory.raw[:9_999] == bytes_of[1:]
    assert ring.perform(op=OP_CLOSE, file=opened.file).value == 0
    assert ring.perform(op=OP_READ, file=opened.file, buf=at, len=1).value == -errno.EBADF
    ring.sakia.sakia_file_unref(opened.file)
    missing = ring.perform(op=OP_OPEN, path=f"{path}.missing".encode(), flags=os.O_RDONLY)
    assert missing.value == -errno.ENOENT and missing.file is None
    assert ring.perform(op=OP_NOP).value == 0


def wrong_sizes_are_refused(sakia, kind, options):
    for field, sizes in (
        ("size", (0, 8, 16, ctypes.sizeof(options) + 1, 8192)),
        ("request_size", (0, 56, 63, ctypes.sizeof(Request) + 4, 8192)),
        ("result_size", (0, 24, ctypes.sizeof(Result) + 4, 8192)),
    ):
        for size in sizes:
            wrong = sized(options)
            setattr(wrong, field, size)
            try:
                Ring(sakia, kind, wrong)
            except OSError as error:
                assert error.errno == errno.EINVAL and str(size) in error.strerror, error
            else:
                raise AssertionError(f"{field} of {size} bytes")


def main():
    library, version, path = sys.argv[1:]
    sakia = load(library)
    assert [ctypes.sizeof(it) for it in (LoopOptions, QueueOptions, Request, Result)] == [32, 40, 112, 48]
    assert sakia.sakia_version() == int(version)
    for kind, options in (("loop", LoopOptions), ("queue", QueueOptions)):
        wrong_sizes_are_refused(sakia, kind, options)
        ring = Ring(sakia, kind, sized(options))
        read_a_file(ring, path)
        assert ring.call("free") == 0
        assert ring.call("free", None, is_of_handle=False) == 0
    os.unlink(path)
    print("abi: ok")


main()
