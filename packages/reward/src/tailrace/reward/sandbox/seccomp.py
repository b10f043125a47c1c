"""A system call filter that every program runs under, whatever else confines it.

It closes what namespaces, Landlock and resource limits leave open: sockets other than connected pairs, memory outside of
resident sets (memfd, SysV shared memory), parts of the kernel that a program never needs and that had many holes, and what
Landlock does not cover: a change of another process of the same user (prlimit, priorities), of the owner, mode, times or
attributes of any file of that user, a watch or a lease on its files, a signal by the owner of a descriptor, and a datagram to a
socket file.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

from tailrace.reward.errors import NoSandboxError

# name: numbers on x86_64 and aarch64; None where it does not exist.
DENIED_CALLS: dict[str, tuple[int | None, int | None]] = {
    "acct": (163, 89), "add_key": (248, 217), "adjtimex": (159, 171), "bpf": (321, 280), "chroot": (161, 51),
    "clock_adjtime": (305, 266), "clock_settime": (227, 112), "delete_module": (176, 106),
    "fanotify_init": (300, 262), "finit_module": (313, 273), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fsopen": (430, 430), "fspick": (433, 433), "init_module": (175, 105), "io_setup": (206, 0),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "io_uring_setup": (425, 425),
    "ioperm": (173, None), "iopl": (172, None), "ioprio_set": (251, 30), "kexec_file_load": (320, 294),
    "kexec_load": (246, 104), "keyctl": (250, 219), "lookup_dcookie": (212, 18), "mbind": (237, 235),
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "migrate_pages": (256, 238), "modify_ldt": (154, None),
    "mount": (165, 40), "mount_setattr": (442, 442), "move_mount": (429, 429), "move_pages": (279, 239),
    "mq_open": (240, 180), "msgget": (68, 186), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "open_tree": (428, 428), "perf_event_open": (298, 241), "pivot_root": (155, 41),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "ptrace": (101, 117), "quotactl": (179, 60),
    "quotactl_fd": (443, 443), "reboot": (169, 142), "request_key": (249, 218), "semget": (64, 190),
    "set_mempolicy": (238, 237), "setdomainname": (171, 162), "sethostname": (170, 161), "setns": (308, 268),
    "settimeofday": (164, 170), "shmget": (29, 194), "socket": (41, 198), "swapoff": (168, 225), "swapon": (167, 224),
    "syslog": (103, 116), "umount2": (166, 39), "unshare": (272, 97), "uselib": (134, None),
    "userfaultfd": (323, 282), "vhangup": (153, 58), "kcmp": (312, 272), "pidfd_getfd": (438, 438),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "connect": (42, 203), "bind": (49, 200),
    "listen": (50, 201), "inotify_init1": (294, 26), "inotify_init": (253, None), "chown": (92, None),
    "lchown": (94, None), "fchown": (93, 55), "fchownat": (260, 54), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "setxattrat": (463, 463), "removexattrat": (466, 466), "file_setattr": (469, 469), "shmat": (30, 196),
    "shmctl": (31, 195), "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192), "msgsnd": (69, 189),
    "msgrcv": (70, 188), "msgctl": (71, 187), "mq_unlink": (241, 181),
}  # fmt: skip
# Without error and without effect. Programs stay in the group that one signal ends, and need no other modes and times; what
# they write need not reach a disk, and a sync of everything holds up the whole machine.
_IDLE: dict[str, tuple[int | None, int | None]] = {
    "setsid": (112, 157), "setpgid": (109, 154), "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53),
    "fchmodat2": (452, 452), "utime": (132, None), "utimes": (235, None), "futimesat": (261, None),
    "utimensat": (280, 88), "sync": (162, 81), "syncfs": (306, 267), "fsync": (74, 82), "fdatasync": (75, 83),
    "sync_file_range": (277, 84),
}  # fmt: skip
# Allowed on the calling process only: the first argument, a process id, must be 0.
_ONLY_ONESELF = {
    "prlimit64": (302, 261), "sched_setaffinity": (203, 122), "sched_setattr": (314, 274),
    "sched_setparam": (142, 118), "sched_setscheduler": (144, 119),
}  # fmt: skip
# By their second argument. Of fcntl: what copies and marks descriptors, locks, and asks; pipes' sizes. Of ioctl: whether it is
# a terminal, its size and group, bytes that wait, FIONBIO, FIONCLEX, FIOCLEX, FICLONE. Others change files that are open to be
# read (flags, an attribute of the file system, a lease), or say who gets a signal.
_ALLOWED_COMMANDS = {
    (72, 25): (*range(8), 9, 11, 16, 36, 37, 38, 1025, 1030, 1031, 1032, 1034),
    (16, 29): (0x5401, 0x802C542A, 0x540F, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x40049409),
}
_KILL_ONE = {"kill": (62, 129), "tkill": (200, 130), "rt_sigqueueinfo": (129, 138)}
_KILL_THREAD = {"tgkill": (234, 131), "rt_tgsigqueueinfo": (297, 240)}
_PIDFD_SEND_SIGNAL = (424, 424)
PROTECTED = 0x7F00007F
"""Stands in `protecting_filters` for the id of the process that it protects."""
_SETPRIORITY = (141, 140)
_SOCKETPAIR = (53, 199)
_SOCK_STREAM, _SOCK_SEQPACKET, _SOCK_TYPE = 1, 5, 0xF
_CLONE, _CLONE3 = (56, 220), (435, 435)
_FORKS = ((57, None), (58, None))  # fork, vfork
_NEW_NAMESPACES = 0x7E020080  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET, NEWTIME

_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_LOAD, _AND, _JEQ, _JGE, _JSET, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO, _ASK = 0x7FFF0000, 0x80000000, 0x00050000, 0x7FC00000
_NUMBER_AT, _ARCH_AT, _ARGS_AT = 0, 4, 16
_LINE_BYTES = 8

_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP = (317, 277)
_SET_MODE_FILTER, _NEW_LISTENER = 1, 1 << 3
_libc = ctypes.CDLL(None, use_errno=True)


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("lines", ctypes.c_char_p))


def install_filter(lines: bytes, *, listen: bool = False) -> int:
    """Filter the system calls of this thread and of all processes and threads that it starts.

    Args:
        lines: the filter, an array of ``struct sock_filter``.
        listen: make a descriptor on which whoever reads it answers the calls that the filter asks about.

    Returns:
        That descriptor, which is closed when this process runs another program; 0 without `listen`.

    Raises:
        OSError: the kernel refused.
    """
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")
    program, column = _Filter(len(lines) // _LINE_BYTES, lines), _column()
    flags = ctypes.c_ulong(_NEW_LISTENER if listen else 0)
    number = ctypes.c_long(_SECCOMP[column])
    found: int = _libc.syscall(number, ctypes.c_ulong(_SET_MODE_FILTER), flags, ctypes.byref(program))
    _check(min(found, 0), "seccomp(SECCOMP_SET_MODE_FILTER)")
    return found


def _check(status: int, what: str) -> None:
    if status != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def _column() -> int:
    if platform.machine() not in _MACHINES:
        raise NoSandboxError(f"found the machine {platform.machine()!r}, expected x86_64 or aarch64")
    return _MACHINES[platform.machine()][0]


def asking_filter() -> bytes:
    """A filter that asks its listener about each start of a process or a thread, as an array of ``struct sock_filter``.

    Raises:
        NoSandboxError: this machine is neither x86_64 nor aarch64.
    """
    column, code = _column(), [(_LOAD, 0, 0, _NUMBER_AT)]
    for call in (*_FORKS, _CLONE, _CLONE3):
        if (number := call[column]) is not None:
            code += _if_call(number, [(_RETURN, 0, 0, _ASK)])
    return _packed(code)


def program_filter() -> bytes:
    """The filter as an array of ``struct sock_filter``.

    Raises:
        NoSandboxError: this machine is neither x86_64 nor aarch64.
    """
    column = _column()
    arch = _MACHINES[platform.machine()][1]
    deny = _ERRNO | errno.EPERM
    code = [(_LOAD, 0, 0, _ARCH_AT), (_JEQ, 1, 0, arch), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER_AT)]
    if column == 0:
        code += [(_JGE, 0, 1, 0x40000000), (_RETURN, 0, 0, deny)]  # the x32 twins of all calls
    code += _if_call(
        _CLONE3[column], [(_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    )  # its flags cannot be seen; libc falls back
    code += _if_call(_CLONE[column], [(_LOAD, 0, 0, _ARGS_AT), (_JSET, 0, 1, _NEW_NAMESPACES), (_RETURN, 0, 0, deny)])
    for numbers in _ONLY_ONESELF.values():
        code += _if_call(numbers[column], [(_LOAD, 0, 0, _ARGS_AT), (_JEQ, 1, 0, 0), (_RETURN, 0, 0, deny)])
    connected = [(_LOAD, 0, 0, _ARGS_AT + 8), (_AND, 0, 0, _SOCK_TYPE), (_JEQ, 2, 0, _SOCK_STREAM)]
    connected += [(_JEQ, 1, 0, _SOCK_SEQPACKET), (_RETURN, 0, 0, deny)]
    code += _if_call(_SOCKETPAIR[column], connected)
    itself = [
        (_LOAD, 0, 0, _ARGS_AT),
        (_JEQ, 0, 2, 0),
        (_LOAD, 0, 0, _ARGS_AT + 8),
        (_JEQ, 1, 0, 0),
        (_RETURN, 0, 0, deny),
    ]
    code += _if_call(_SETPRIORITY[column], itself)
    for numbers, commands in _ALLOWED_COMMANDS.items():
        body = [(_LOAD, 0, 0, _ARGS_AT + 8)]
        body += [(_JEQ, len(commands) - place, 0, command) for place, command in enumerate(commands)]
        code += _if_call(numbers[column], [*body, (_RETURN, 0, 0, deny)])
    for calls, answer in ((_IDLE, _ERRNO), (DENIED_CALLS, deny)):
        for each in calls.values():
            if (number := each[column]) is not None:
                code += _if_call(number, [(_RETURN, 0, 0, answer)])
    return _packed(code)


def protecting_filters() -> dict[str, bytes]:
    """For each kind of machine, a filter for a process and its children that keeps their signals from the process `PROTECTED`,
    from whole groups, and so from everything that they did not start."""
    deny, found = (_RETURN, 0, 0, _ERRNO | errno.EPERM), {}
    allow = (_RETURN, 0, 0, _ALLOW)
    one = [(_LOAD, 0, 0, _ARGS_AT), (_JGE, 3, 0, 1 << 31), (_JEQ, 2, 0, 0), (_JEQ, 1, 0, PROTECTED), allow, deny]
    thread = [(_LOAD, 0, 0, _ARGS_AT), (_JEQ, 3, 0, PROTECTED), (_LOAD, 0, 0, _ARGS_AT + 8), (_JEQ, 1, 0, PROTECTED)]
    for machine, (column, _) in _MACHINES.items():
        code = [(_LOAD, 0, 0, _NUMBER_AT), *_if_call(_PIDFD_SEND_SIGNAL[column], [deny])]
        for calls, body in ((_KILL_ONE, one), (_KILL_THREAD, [*thread, allow, deny])):
            for numbers in calls.values():
                code += _if_call(numbers[column], body)
        found[machine] = _packed(code)
    return found


def _packed(code: list[tuple[int, int, int, int]]) -> bytes:
    return b"".join(struct.pack("=HBBI", *line) for line in (*code, (_RETURN, 0, 0, _ALLOW)))


def _if_call(number: int, then: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Lines for one call. Where they fall through, the call is allowed; another call's number stays loaded."""
    body = then if then[-1][0] == _RETURN and len(then) == 1 else [*then, (_RETURN, 0, 0, _ALLOW)]
    return [(_JEQ, 0, len(body), number), *body]
