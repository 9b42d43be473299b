"""The system calls a confined process may make, in groups that a program needs together.

Numbers are those of x86-64 and aarch64; None where the architecture has no such call.
"""

from dataclasses import dataclass

Numbers = tuple[int | None, int | None]

# What a single-threaded interpreter needs to compute and to read files; nothing that makes a socket, a process, a
# thread, a pipe, a memory file or a signal to somebody else.
ALONE: dict[str, Numbers] = {
    # descriptors that are there already, and looking at files (Landlock says which can be read)
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67),
    "lseek": (8, 62), "close": (3, 57), "close_range": (436, 436),
    "stat": (4, None), "fstat": (5, 80), "lstat": (6, None), "newfstatat": (262, 79), "statx": (332, 291),
    "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439), "readlink": (89, None),
    "readlinkat": (267, 78), "getdents64": (217, 61), "getcwd": (79, 17), "dup": (32, 23), "dup2": (33, None),
    "dup3": (292, 24), "poll": (7, None), "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72),
    # its own memory
    "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "mremap": (25, 216), "madvise": (28, 233),
    "brk": (12, 214), "futex": (202, 98),
    # signals to itself, timers, clocks
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136),
    "rt_sigtimedwait": (128, 137), "sigaltstack": (131, 132), "restart_syscall": (219, 128), "alarm": (37, None),
    "getitimer": (36, 102), "setitimer": (38, 103), "pause": (34, None), "nanosleep": (35, 101),
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115),
    "gettimeofday": (96, 169), "time": (201, None), "times": (100, 153),
    # asking about itself, ending
    "getpid": (39, 172), "getppid": (110, 173), "gettid": (186, 178), "getuid": (102, 174), "geteuid": (107, 175),
    "getgid": (104, 176), "getegid": (108, 177), "getrandom": (318, 278), "getrusage": (98, 165),
    "getrlimit": (97, 163), "uname": (63, 160), "sched_yield": (24, 124), "sched_getaffinity": (204, 123),
    "exit": (60, 93), "exit_group": (231, 94),
}  # fmt: skip

# Where there is a work directory to change; Landlock keeps all of it inside. Not `truncate` by name, which Landlock
# learned about in ABI 3 only.
CHANGING_FILES: dict[str, Numbers] = {
    "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None), "unlink": (87, None), "unlinkat": (263, 35),
    "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276), "link": (86, None), "linkat": (265, 37),
    "symlink": (88, None), "symlinkat": (266, 36), "creat": (85, None), "ftruncate": (77, 46), "fsync": (74, 82),
    "fdatasync": (75, 83), "pwrite64": (18, 68), "pwritev": (296, 70), "fallocate": (285, 47), "flock": (73, 32),
    "umask": (95, 166), "chdir": (80, 49), "fchdir": (81, 50), "statfs": (137, 43), "fstatfs": (138, 44),
    "sendfile": (40, 71), "copy_file_range": (326, 285), "msync": (26, 227),
}  # fmt: skip

# What a new program does before its own first line.
STARTING: dict[str, Numbers] = {
    "execve": (59, 221), "arch_prctl": (158, None), "set_tid_address": (218, 96), "set_robust_list": (273, 99),
    "rseq": (334, 293), "sysinfo": (99, 179), "getpgrp": (111, None), "getpgid": (121, 155), "getsid": (124, 156),
    "getgroups": (115, 158), "getresuid": (118, 148), "getresgid": (120, 150), "fadvise64": (221, 223),
    "capget": (125, 90), "umask": (95, 166),
}  # fmt: skip

# Children, threads, and what they talk through. Neither setsid nor setpgid: one signal to the group reaches them all.
PROCESSES: dict[str, Numbers] = {
    "fork": (57, None), "vfork": (58, None), "wait4": (61, 260), "waitid": (247, 95), "pipe": (22, None),
    "pipe2": (293, 59), "eventfd2": (290, 19), "epoll_create": (213, None), "epoll_create1": (291, 20),
    "epoll_ctl": (233, 21), "epoll_wait": (232, None), "epoll_pwait": (281, 22), "epoll_pwait2": (441, 441),
    "membarrier": (324, 283), "sched_getparam": (143, 121), "sched_getscheduler": (145, 120),
    "getpriority": (140, 141), "chdir": (80, 49), "fchdir": (81, 50), "mincore": (27, 232),
}  # fmt: skip

# abort() and kill; only where Landlock keeps signals inside.
SIGNALS: dict[str, Numbers] = {"kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131)}

# Said to be missing, so that the C library falls back to clone, whose flags a filter can see.
MISSING: dict[str, Numbers] = {"clone3": (435, 435)}

# Succeed without doing anything, where files can be changed: Landlock would let them at anything of the same user.
IGNORED: dict[str, Numbers] = {
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "utime": (132, None),
    "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
}  # fmt: skip


@dataclass(frozen=True)
class Masked:
    """A call that is allowed only while `argument & mask` is one of `values`."""

    numbers: Numbers
    argument: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF


# O_RDONLY, O_WRONLY, O_RDWR, and O_TRUNC with the last two: reading must not empty a file, which Landlock knows from
# ABI 3 on only. No O_TMPFILE, whose files cannot be counted.
_OPENING, _OPENING_MASK = (0, 1, 2, 0x201, 0x202), 0x400203

MASKED_ALONE: dict[str, Masked] = {
    "open": Masked((2, None), 1, _OPENING, _OPENING_MASK),
    "openat": Masked((257, 56), 2, _OPENING, _OPENING_MASK),
    # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC; not F_SETOWN (signals), F_SETPIPE_SZ (memory)
    "fcntl": Masked((72, 25), 1, (0, 1, 2, 3, 4, 1030)),
    # TCGETS, FIONCLEX, FIOCLEX, TIOCGWINSZ: what io.open and isatty ask; FIONBIO: Node's way to say O_NONBLOCK
    "ioctl": Masked((16, 29), 1, (0x5401, 0x5450, 0x5451, 0x5413, 0x5421)),
    # only its own limits, which are hard already
    "prlimit64": Masked((302, 261), 0, (0,)),
}
# Where nothing may be written at all: reading only, not O_CREAT either. Landlock says so too, where there is Landlock.
_READING, _READING_MASK = (0,), _OPENING_MASK | 0x40
MASKED_READING: dict[str, Masked] = {
    "open": Masked((2, None), 1, _READING, _READING_MASK),
    "openat": Masked((257, 56), 2, _READING, _READING_MASK),
}
MASKED_STARTING: dict[str, Masked] = {
    # PR_SET_NAME, PR_GET_NAME
    "prctl": Masked((157, 167), 0, (15, 16)),
}
MASKED_PROCESSES: dict[str, Masked] = {
    # no new namespaces (CLONE_NEW*), and no child that is the zygote's instead (CLONE_PARENT)
    "clone": Masked((56, 220), 0, (0,), 0x7E028000),
}
