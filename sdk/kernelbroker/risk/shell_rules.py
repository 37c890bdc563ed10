"""What shell commands do, and how much of a risk each is: a line for each.

`COMMANDS` holds what counts whatever the arguments; `rm` and others whose arguments decide are in
`command_arguments.py`, `python -c` and others that run code in `commands.py`. The reason is read after the
command's name.
"""

from __future__ import annotations

from ..protocol.findings import Language, Level
from .python_rules import Rule


def _rules(rule: str, level: Level, reason: str, names: str) -> dict[str, Rule]:
    return {name: Rule(rule, level, reason) for name in names.split()}


COMMANDS: dict[str, Rule] = {
    **_rules("network", "medium", "uses the network", """
        aria2c curl ftp sftp scp ssh rsync telnet http https fetch lynx w3m links axel tftp smbclient
        dig nslookup host ping whois nmap masscan mail sendmail wget
        http.server"""),
    **_rules("device", "critical", "destroys what a disk holds", """
        mkfs mkfs.ext2 mkfs.ext3 mkfs.ext4 mkfs.xfs mkfs.btrfs mke2fs mkswap wipefs fdisk sfdisk
        parted blkdiscard hdparm"""),
    **_rules("escape", "high", "changes what the process is to the system", """
        nsenter unshare chroot umount pivot_root setcap capsh insmod modprobe rmmod kexec losetup
        iptables nft runc ctr crictl systemctl systemd-run debugfs"""),
    **_rules("escape", "high", "speaks to the containers' engine", "docker podman kubectl"),
    **_rules("escape", "high", "acts as another user", "su passwd chpasswd useradd usermod visudo newgrp"),
    **_rules("inspection", "high", "reaches into other processes", "gdb strace ltrace ptrace lldb"),
    **_rules("end", "high", "stops the machine", "shutdown reboot halt poweroff telinit"),
    **_rules("schedule", "medium", "leaves something to run later", "crontab at batch"),
    **_rules("environment", "medium", "shows all environment variables", "printenv declare"),
    **_rules("secrets", "medium", "shows what was typed before", "history"),
    **_rules("signal", "medium", "can end other processes", "pkill killall killall5"),
    **_rules("process", "medium", "starts another terminal or session", "screen tmux script expect"),
    **_rules("install", "low", "installs software", "yarn gem cargo"),
    **_rules("install", "medium", "runs what it installs", "npx bunx uvx pipx"),
    **_rules("mining", "critical", "mines coins", "xmrig minerd cpuminer ethminer t-rex"),
}  # fmt: skip

SHELLS = {"sh", "bash", "dash", "zsh", "ksh", "ash", "fish", "rbash"}
INTERPRETERS: dict[str, Language] = {
    "python": "python",
    "python2": "python",
    "python3": "python",
    "node": "javascript",
}
_CALLS = r"\b(system2?|exec\w*|p?open[23]|popen|spawn|shell_exec|passthru|proc_open|f?sock\w*)\s*\("
_WORDS = r"\b(system|exec|spawn)\s*([\"'$@%]|q[qw]?\W)|`[^`]+`|\b(qx|%x)\W|IO::Socket|IO\.popen|TCPSocket"
_AWK = r"\bsystem\s*\(|\|&?\s*getline|/inet/"
OTHER_INTERPRETERS = {
    # what in their code runs a program or connects; it is not parsed, only looked at for this
    "perl": f"{_CALLS}|{_WORDS}", "ruby": f"{_CALLS}|{_WORDS}", "php": f"{_CALLS}|`[^`]+`",
    "R": _CALLS, "Rscript": _CALLS, "lua": r"\b(os\.execute|io\.popen)\b",
    "awk": _AWK, "gawk": _AWK, "mawk": _AWK,
    "osascript": r"do shell script", "tclsh": r"\b(exec|open|socket)\s",
}  # fmt: skip
DOWNLOADERS = {"curl", "wget", "fetch", "aria2c", "nc", "ncat", "http", "https", "lynx"}

CONNECTORS = {"nc", "ncat", "netcat", "socat", "telnet"}
"""What passes its input on to a connection."""

WRAPPERS: dict[str, str] = {
    # command: its options that take a value; what follows is a command itself
    "command": "", "builtin": "", "exec": "a", "nohup": "", "nice": "n", "ionice": "cnp", "time": "fo",
    "timeout": "ks", "stdbuf": "ioe", "setsid": "", "env": "uCS", "sudo": "ugphCrtT", "doas": "uC",
    "xargs": "IinLPsdEa", "busybox": "", "toybox": "", "watch": "nd", "parallel": "j", "unbuffer": "",
    "chrt": "", "taskset": "c", "flock": "wE", "torsocks": "", "proxychains": "", "strace-log-merge": "",
}  # fmt: skip
SKIPPED = {"timeout": 1, "taskset": 1, "flock": 1, "chrt": 1}
"""How many arguments of a wrapper come before the command."""

READERS = {
    "cat", "less", "more", "head", "tail", "tac", "nl", "od", "xxd", "hexdump", "strings", "base64", "grep",
    "egrep", "fgrep", "rg", "sed", "awk", "cut", "sort", "uniq", "wc", "cp", "mv", "tar", "zip", "gzip",
    "bzip2", "xz",
    "diff", "cmp", "find", "ls", "stat", "file", "scp", "rsync", "curl", "wget", "tee", "dd", "ln",
    "rev", "paste",
    "join", "source", ".", "read", "md5sum", "sha256sum", "openssl", "gpg", "nc", "install", "jq",
    "vi", "nano",
}  # fmt: skip
"""Commands whose arguments may be paths that are read."""

PATTERN_FIRST = {"grep", "egrep", "fgrep", "rg", "sed", "awk", "gawk", "mawk", "jq"}
"""Readers whose first argument is no path, unless an option says otherwise."""

WRITERS: dict[str, str] = {
    # command: which of its arguments it writes to
    "tee": "all", "touch": "all", "mkdir": "all", "cp": "last", "mv": "last", "ln": "last",
    "install": "last",
    "truncate": "all", "mkfifo": "all", "mknod": "all", "chattr": "last",
}  # fmt: skip

WRITING_OPTIONS: dict[str, tuple[str, ...]] = {
    # command: its options with a path that it writes to
    "curl": ("-o", "--output", "--output-dir", "-D", "--dump-header", "-c", "--cookie-jar"),
    "wget": ("-O", "--output-document", "-P", "--directory-prefix", "-o", "--output-file"),
    "unzip": ("-d",), "sort": ("-o", "--output"), "gpg": ("-o", "--output"), "openssl": ("-out",),
    "cp": ("-t", "--target-directory"), "mv": ("-t", "--target-directory"),
    "install": ("-t", "--target-directory"),
}  # fmt: skip
