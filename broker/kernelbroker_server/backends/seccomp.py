"""The seccomp filter of a jail: the system calls that it may make. Does no I/O.

It is a list of allowed calls, after the default profile of Docker. All other calls fail with EPERM: those
that load code into the kernel, trace or read other processes, create namespaces, mount file systems, set
clocks or place memory, and those that are used mostly by exploits. `clone3` fails
with ENOSYS, since a filter cannot read its flags in memory; the C library then uses `clone`. Calls that are
newer than the list fail with ENOSYS as well, so that the C library does without them. A call of another
architecture kills the process, since its number means a different call there.
"""

from __future__ import annotations

import errno
import platform
from collections.abc import Iterable, Iterator

from kernelbroker_kernel import bpf
from kernelbroker_kernel.bpf import EQUAL, HIGH, NO_BITS, NOT_EQUAL, Rule
from kernelbroker_kernel.socket_filter import SOCKETS

# Each call with its numbers on x86_64 and aarch64; "-" if the architecture does not have it. The numbers
# are those of libseccomp, which a test compares, and of Linux 6.18.
_ALLOWED = """
read 0 63; write 1 64; open 2 -; close 3 57; stat 4 -; fstat 5 80; lstat 6 -; poll 7 -; lseek 8 62; mmap
9 222; mprotect 10 226; munmap 11 215; brk 12 214; rt_sigaction 13 134; rt_sigprocmask 14 135;
rt_sigreturn 15 139; pread64 17 67; pwrite64 18 68; readv 19 65; writev 20 66; access 21 -; pipe 22 -;
select 23 -; sched_yield 24 124; mremap 25 216; msync 26 227; mincore 27 232; madvise 28 233; shmget 29
194; shmat 30 196; shmctl 31 195; dup 32 23; dup2 33 -; pause 34 -; nanosleep 35 101; getitimer 36 102;
alarm 37 -; setitimer 38 103; getpid 39 172; sendfile 40 71; connect 42 203; accept 43 202; sendto 44
206; recvfrom 45 207; sendmsg 46 211; recvmsg 47 212; shutdown 48 210; bind 49 200; listen 50 201;
getsockname 51 204; getpeername 52 205; setsockopt 54 208; getsockopt 55 209; fork 57 -; vfork 58 -;
execve 59 221; exit 60 93; wait4 61 260; kill 62 129; uname 63 160; semget 64 190; semop 65 193; semctl
66 191; shmdt 67 197; msgget 68 186; msgsnd 69 189; msgrcv 70 188; msgctl 71 187; fcntl 72 25; flock 73
32; fsync 74 82; fdatasync 75 83; truncate 76 45; ftruncate 77 46; getdents 78 -; getcwd 79 17; chdir 80
49; fchdir 81 50; rename 82 -; mkdir 83 -; rmdir 84 -; creat 85 -; link 86 -; unlink 87 -; symlink 88 -;
readlink 89 -; chmod 90 -; fchmod 91 52; chown 92 -; fchown 93 55; lchown 94 -; umask 95 166;
gettimeofday 96 169; getrlimit 97 163; getrusage 98 165; sysinfo 99 179; times 100 153; getuid 102 174;
getgid 104 176; setuid 105 146; setgid 106 144; geteuid 107 175; getegid 108 177; setpgid 109 154;
getppid 110 173; getpgrp 111 -; setsid 112 157; setreuid 113 145; setregid 114 143; getgroups 115 158;
setgroups 116 159; setresuid 117 147; getresuid 118 148; setresgid 119 149; getresgid 120 150; getpgid
121 155; setfsuid 122 151; setfsgid 123 152; getsid 124 156; capget 125 90; capset 126 91; rt_sigpending
127 136; rt_sigtimedwait 128 137; rt_sigqueueinfo 129 138; rt_sigsuspend 130 133; sigaltstack 131 132;
utime 132 -; mknod 133 -; statfs 137 43; fstatfs 138 44; getpriority 140 141; setpriority 141 140;
sched_setparam 142 118; sched_getparam 143 121; sched_setscheduler 144 119; sched_getscheduler 145 120;
sched_get_priority_max 146 125; sched_get_priority_min 147 126; sched_rr_get_interval 148 127; mlock 149
228; munlock 150 229; mlockall 151 230; munlockall 152 231; prctl 157 167; arch_prctl 158 -; sync 162
81; gettid 186 178; readahead 187 213; setxattr 188 5; lsetxattr 189 6; fsetxattr 190 7; getxattr 191 8;
lgetxattr 192 9; fgetxattr 193 10; listxattr 194 11; llistxattr 195 12; flistxattr 196 13; removexattr
197 14; lremovexattr 198 15; fremovexattr 199 16; tkill 200 130; time 201 -; futex 202 98;
sched_setaffinity 203 122; sched_getaffinity 204 123; set_thread_area 205 -; io_setup 206 0; io_destroy
207 1; io_getevents 208 4; io_submit 209 2; io_cancel 210 3; get_thread_area 211 -; epoll_create 213 -;
remap_file_pages 216 234; getdents64 217 61; set_tid_address 218 96; restart_syscall 219 128; semtimedop
220 192; fadvise64 221 223; timer_create 222 107; timer_settime 223 110; timer_gettime 224 108;
timer_getoverrun 225 109; timer_delete 226 111; clock_gettime 228 113; clock_getres 229 114;
clock_nanosleep 230 115; exit_group 231 94; epoll_wait 232 -; epoll_ctl 233 21; tgkill 234 131; utimes
235 -; mq_open 240 180; mq_unlink 241 181; mq_timedsend 242 182; mq_timedreceive 243 183; mq_notify 244
184; mq_getsetattr 245 185; waitid 247 95; ioprio_set 251 30; ioprio_get 252 31; inotify_init 253 -;
inotify_add_watch 254 27; inotify_rm_watch 255 28; openat 257 56; mkdirat 258 34; mknodat 259 33;
fchownat 260 54; futimesat 261 -; newfstatat 262 79; unlinkat 263 35; renameat 264 38; linkat 265 37;
symlinkat 266 36; readlinkat 267 78; fchmodat 268 53; faccessat 269 48; pselect6 270 72; ppoll 271 73;
set_robust_list 273 99; get_robust_list 274 100; splice 275 76; tee 276 77; sync_file_range 277 84;
vmsplice 278 75; utimensat 280 88; epoll_pwait 281 22; signalfd 282 -; timerfd_create 283 85; eventfd
284 -; fallocate 285 47; timerfd_settime 286 86; timerfd_gettime 287 87; accept4 288 242; signalfd4 289
74; eventfd2 290 19; epoll_create1 291 20; dup3 292 24; pipe2 293 59; inotify_init1 294 26; preadv 295
69; pwritev 296 70; rt_tgsigqueueinfo 297 240; recvmmsg 299 243; fanotify_mark 301 263;
name_to_handle_at 303 264; syncfs 306 267; sendmmsg 307 269; getcpu 309 168; sched_setattr 314 274;
sched_getattr 315 275; renameat2 316 276; seccomp 317 277; getrandom 318 278; memfd_create 319 279;
execveat 322 281; membarrier 324 283; mlock2 325 284; copy_file_range 326 285; preadv2 327 286; pwritev2
328 287; pkey_mprotect 329 288; pkey_alloc 330 289; pkey_free 331 290; statx 332 291; io_pgetevents 333
292; rseq 334 293; uretprobe 335 -; pidfd_send_signal 424 424; pidfd_open 434 434; close_range 436 436;
openat2 437 437; faccessat2 439 439; epoll_pwait2 441 441; landlock_create_ruleset 444 444;
landlock_add_rule 445 445; landlock_restrict_self 446 446; memfd_secret 447 447; process_mrelease 448
448; futex_waitv 449 449; cachestat 451 451; fchmodat2 452 452; map_shadow_stack 453 453; futex_wake 454
454; futex_wait 455 455; futex_requeue 456 456; statmount 457 457; listmount 458 458; lsm_get_self_attr
459 459; lsm_set_self_attr 460 460; lsm_list_modules 461 461; mseal 462 462; setxattrat 463 463;
getxattrat 464 464; listxattrat 465 465; removexattrat 466 466; file_getattr 468 468; file_setattr 469
469
"""
_NEWEST = 469
"""The last number of the calls that were looked at: those of Linux 6.18, where it is file_setattr. New
calls have the same number on all architectures."""
_CLONE3 = 435
_SETNS = (308, 268)

# All CLONE_NEW* flags except CLONE_NEWTIME: in `clone` its bit is part of the exit signal.
_CLONE_NEW = 0x7E020000
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_AF_UNIX = 1
_RLIMIT_CORE = 4

# Calls that depend on their arguments. The filter compares the low 32 bits, since the kernel ignores the
# high bits of these arguments; of a pointer it compares both.
_CONDITIONAL: dict[tuple[int, int], list[list[tuple[float, str, int]]]] = {
    (56, 220): [[(0, NO_BITS, _CLONE_NEW)]],  # clone
    (16, 29): [[(1, NOT_EQUAL, _TIOCSTI), (1, NOT_EQUAL, _TIOCLINUX)]],  # ioctl: forged input
    (41, 198): SOCKETS,  # socket
    (53, 199): [[(0, EQUAL, _AF_UNIX)]],  # socketpair
    # The limit of 1 byte keeps a crash from running the host's program for core dumps; 0 would not. So it
    # can be read, and not changed.
    (160, 164): [[(0, NOT_EQUAL, _RLIMIT_CORE)]],  # setrlimit
    (302, 261): [  # prlimit64
        [(1, NOT_EQUAL, _RLIMIT_CORE)],
        [(2, EQUAL, 0), (2 + HIGH, EQUAL, 0)],
    ],
    # personality: Linux and 32-bit Linux, both with and without UNAME26; the last value is a query
    (135, 92): [[(0, EQUAL, value)] for value in (0, 8, 0x20000, 0x20008, 0xFFFFFFFF)],
}
_COLUMNS = {"x86_64": 0, "aarch64": 1}


def filter_for(machine: str = platform.machine(), *, may_enter: bool = False) -> bytes | None:
    """The filter for `bwrap --seccomp`; None for an unknown architecture.

    Args:
        may_enter: setns(2) is allowed: for a fork server, which enters the jails of its sandboxes.
    """
    if (column := _COLUMNS.get(machine)) is None:
        return None
    refuse = bpf.fails(errno.EPERM)
    numbers = {each[column] for each in allowed_calls().values()} | (
        {_SETNS[column]} if may_enter else set()
    )
    rules = [
        *(Rule(call[column], call[column], refuse, lines) for call, lines in _CONDITIONAL.items()),
        Rule(_CLONE3, _CLONE3, bpf.fails(errno.ENOSYS)),
        *(
            Rule(*each, bpf.ALLOW)
            for each in _ranges(number for number in numbers if number is not None)
        ),
        Rule(_NEWEST + 1, 0xFFFFFFFE, bpf.fails(errno.ENOSYS)),
    ]
    return bpf.assemble(machine, rules, otherwise=refuse, foreign=bpf.KILL_PROCESS)


def allowed_calls() -> dict[str, tuple[int | None, int | None]]:
    """The numbers, by name, of the calls that are allowed whatever their arguments are."""
    calls = {}
    for entry in _ALLOWED.split(";"):
        name, intel, arm = entry.split()
        calls[name] = (_number(intel), _number(arm))
    return calls


def _number(text: str) -> int | None:
    return None if text == "-" else int(text)


def _ranges(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The first and last of each run of neighbours."""
    ordered = sorted(numbers)
    first = ordered[0]
    for number, following in zip(ordered, [*ordered[1:], -1], strict=True):
        if following != number + 1:
            yield first, number
            first = following
