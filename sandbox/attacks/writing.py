"""Attacks on the file system: writing outside, planting links for somebody else, moving things."""

from sandbox.attacks.attack import Attack, Family, system_call


def _change(name: str, statement: str, success: str, **rest: object) -> Attack:
    program = f'import os\ndef attack():\n    {statement}\n    return "breached"'
    return Attack(name, success, "system-call filter", program, **rest)  # type: ignore[arg-type]


_FILTER_AND_LANDLOCK = ("system-call filter", "Landlock", "resource limits")

FAMILY = Family(
    "writing",
    "change files of the host, or plant something for whoever looks later",
    (
        _change(
            "a new file where everybody may write",
            "open('@outdoors@/new', 'w').write('x')",
            "a file appears outside",
            succeeds_without=_FILTER_AND_LANDLOCK,
        ),
        _change(
            "a file that everybody may change",
            "open('@outdoors@/kept', 'w').write('changed')",
            "its content changes",
            succeeds_without=_FILTER_AND_LANDLOCK,
        ),
        _change("/tmp", "open('/tmp/sandbox-attack', 'w')", "a file appears in /tmp"),
        _change("/dev/shm", "open('/dev/shm/sandbox-attack', 'w')", "shared memory outside"),
        _change("Python's own library", "open(os.__file__, 'r+')", "the next program runs changed code"),
        _change(
            "a shared object", "import _ctypes; open(_ctypes.__file__, 'r+')", "the next program loads changed code"
        ),
        _change(
            "truncate by path",
            "os.truncate('@outdoors@/kept', 0)",
            "its content is gone",
            succeeds_without=_FILTER_AND_LANDLOCK,
        ),
        _change(
            "a new folder",
            "os.mkdir('@outdoors@/new')",
            "a folder appears outside",
            succeeds_without=_FILTER_AND_LANDLOCK,
        ),
        _change(
            "a symbolic link for a reader with more rights",
            "os.symlink('/etc/shadow', '@outdoors@/new')",
            "whoever reads it reads /etc/shadow",
            succeeds_without=_FILTER_AND_LANDLOCK,
        ),
        _change(
            "a hard link to a secret",
            "os.link('@secret@', '@outdoors@/new')",
            "the secret has a second name",
        ),
        _change(
            "renaming over another file",
            "os.rename('@outdoors@/kept', '@outdoors@/moved')",
            "a file has moved",
            succeeds_without=_FILTER_AND_LANDLOCK,
        ),
        _change(
            "swapping two paths at once (renameat2)",
            "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"
            "    if libc.renameat2(-100, b'@outdoors@/kept', -100, b'@outdoors@/moved', 1) < 0:\n"
            "        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))",
            "a path means another file",
        ),
        _change(
            "removing a file",
            "os.unlink('@outdoors@/kept')",
            "it is gone",
            succeeds_without=_FILTER_AND_LANDLOCK,
        ),
        _change("mode bits", "os.chmod('@outdoors@/kept', 0o7777)", "a file is set-uid"),
        _change("owner", "os.chown('@outdoors@/kept', 12345, 12345)", "a file has another owner"),
        _change("times", "os.utime('@outdoors@/kept', (0, 0))", "a file looks older than it is"),
        _change(
            "extended attributes",
            "os.setxattr('@outdoors@/kept', 'user.a', b'b')",
            "a file carries hidden data",
        ),
        _change(
            "a pipe with a name",
            "os.mkfifo('@outdoors@/new')",
            "whoever opens it hangs",
            succeeds_without=_FILTER_AND_LANDLOCK,
        ),
        _change("a device", "os.mknod('@outdoors@/new', 0o20666, os.makedev(1, 1))", "memory"),
        _change("another folder", "os.chdir('@outdoors@')", "relative paths start outside"),
        _change("another root", "os.chroot('@outdoors@')", "paths mean something else"),
        _change(
            "a file in memory that can be run (memfd)",
            "os.memfd_create('attack')",
            "a place to write and run code",
            succeeds_without=("system-call filter",),
        ),
        system_call("hidden memory (memfd_secret)", "memory that nobody else can look into", 447, 447, "0"),
        system_call("disk quota", "quotas can be changed", 179, 60, "-1, None, 0, None"),
        system_call("process accounting", "the kernel writes a log to a file", 163, 89, "b'/nowhere/log'"),
    ),
)
