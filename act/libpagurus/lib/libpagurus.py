"""libpagurus: a program in a guest of Pagurus steers its own job. pagurus.h tells what each call does.

>>> import libpagurus
>>> libpagurus.where()            # None where there is no Pagurus
Place(job='j1', guest='j1g0', host='host1', site='', guests=1, here=1, cpus=2, load=0.4)

cheap_now, not_now, move, checkpoint and remark return False where there is no Pagurus, or the library is
not there. What is refused, or fails, is an Error with the sentence that says why.
"""

import ctypes
from collections import namedtuple

OK, NONE, INVALID, REFUSED, BUSY, LATE, FAULT = range(7)
ME, JOB = range(2)
BETTER, AWAY, WITH_RANK = range(3)
NOTE, WARNING, ILL = range(3)
SAME_HOST, SAME_SITE, ELSEWHERE = range(3)

Place = namedtuple("Place", "job guest host site guests here cpus load")
Distance = namedtuple("Distance", "guest host place latency bandwidth")
Growth = namedtuple("Growth", "guests first slots hosts")
Price = namedtuple("Price", "to seconds seconds_low seconds_high downtime bytes converges")


class Error(Exception):
    """What was asked for is refused or failed; code is one of those above."""

    def __init__(self, code, text):
        super().__init__(text or "code %d" % code)
        self.code = code


class _Place(ctypes.Structure):
    _fields_ = [("job", ctypes.c_char * 32), ("guest", ctypes.c_char * 40), ("host", ctypes.c_char * 128), ("site", ctypes.c_char * 128),
                ("guests", ctypes.c_int), ("here", ctypes.c_int), ("cpus", ctypes.c_int), ("load", ctypes.c_double)]


class _Distance(ctypes.Structure):
    _fields_ = [("guest", ctypes.c_char * 40), ("host", ctypes.c_char * 128), ("place", ctypes.c_int), ("latency", ctypes.c_double), ("bandwidth", ctypes.c_double)]


class _Price(ctypes.Structure):
    _fields_ = [("to", ctypes.c_char * 128), ("seconds", ctypes.c_double), ("seconds_low", ctypes.c_double), ("seconds_high", ctypes.c_double),
                ("downtime", ctypes.c_double), ("bytes", ctypes.c_longlong), ("converges", ctypes.c_int)]


class _Growth(ctypes.Structure):
    _fields_ = [("guests", ctypes.c_int), ("first", ctypes.c_int), ("slots", ctypes.c_int), ("hosts", ctypes.c_char * 256)]


try:
    _library = ctypes.CDLL("libpagurus.so.0")
    _library.pagurus_text.restype = ctypes.c_char_p
    _library.pagurus_not_now.argtypes = [ctypes.c_double]
    _library.pagurus_scratch.argtypes = [ctypes.c_void_p, ctypes.c_ulong]
    _library.pagurus_scratch_end.argtypes = [ctypes.c_void_p]
except OSError:
    _library = None


def _call(name, *args):
    """Whether there is Pagurus; an Error if it does not do what is asked."""
    code = getattr(_library, name)(*args) if _library else NONE
    if code not in (OK, NONE):
        raise Error(code, (_library.pagurus_text() or b"").decode("utf-8", "replace"))
    return code == OK


def _made(kind, of):
    values = (getattr(of, field) for field in kind._fields)
    return kind(*(v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in values))


def where():
    """Where the caller's guest is; None: not under Pagurus."""
    place = _Place()
    return _made(Place, place) if _call("pagurus_where", ctypes.byref(place)) else None


def neighbours(most=256):
    """The other guests of the job, without the numbers that only where() has."""
    places, count = (_Place * most)(), ctypes.c_int()
    if not _call("pagurus_neighbours", places, most, ctypes.byref(count)):
        return []
    return [_made(Place, p) for p in places[:min(most, count.value)] if p.guest]


def distances(most=256):
    """How far they are."""
    others, count = (_Distance * most)(), ctypes.c_int()
    if not _call("pagurus_distances", others, most, ctypes.byref(count)):
        return []
    return [_made(Distance, d) for d in others[:min(most, count.value)] if d.guest]


def cost(what=ME):
    """What a move would cost now; None: not under Pagurus."""
    price = _Price()
    return _made(Price, price) if _call("pagurus_cost", what, ctypes.byref(price)) else None


def cost_at_mark(what=ME):
    """What it would cost from a moment on that cheap_now() marks."""
    price = _Price()
    return _made(Price, price) if _call("pagurus_cost_at_mark", what, ctypes.byref(price)) else None


def move(what=ME, how=BETTER, rank=0):
    """Asks for a move, and returns when it is decided."""
    return _call("pagurus_move", what, how, rank)


def grow(guests=0, ranks=0, seconds=120):
    """Starts more guests of a job that was submitted with --grow: so many, or as many as some ranks need. Returns when they run; None: not under Pagurus."""
    growth = _Growth()
    name, n = ("pagurus_grow", guests) if guests else ("pagurus_grow_ranks", ranks)
    return _made(Growth, growth) if _call(name, n, ctypes.c_double(seconds), ctypes.byref(growth)) else None


def checkpoint():
    """Asks for a checkpoint of the job, and returns when it is decided."""
    return _call("pagurus_checkpoint")


def cheap_now():
    """Marks a moment in which a move is cheap."""
    return _call("pagurus_cheap_now")


def not_now(seconds):
    """Moves should not begin for so many seconds, or until cheap_now."""
    return _call("pagurus_not_now", float(seconds))


_scratch = {}  # by address: what keeps the memory there


def scratch(buffer):
    """What is in a buffer (a bytearray, an anonymous private mmap, an array of numpy) is not needed at cheap moments.
    It reads as zeros after one for which a move waited. The buffer is kept until scratch_end."""
    held = (ctypes.c_char * memoryview(buffer).nbytes).from_buffer(buffer)
    at = ctypes.addressof(held)
    before = _scratch.setdefault(at, held)
    try:
        return _call("pagurus_scratch", at, len(held))
    except Error as e:
        if before is held and e.code in (INVALID, REFUSED):
            del _scratch[at]
        raise


def scratch_end(buffer):
    """What is in a buffer is needed again."""
    at = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    _scratch.pop(at, None)
    return _call("pagurus_scratch_end", at)


def remark(text, level=NOTE):
    """Tells people something of the job's health."""
    return _call("pagurus_remark", level, str(text).encode())
