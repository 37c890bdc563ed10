"""What shell commands mean by their names and by their arguments."""

from __future__ import annotations

import re

from ..protocol.findings import Language, Level
from .collector import Rule, names, rules

COMMANDS: dict[str, Rule] = {
    **rules("network", "medium", "uses the network", """aria2c curl wget fetch ftp sftp scp ssh rsync
        telnet http https lynx w3m tftp smbclient dig nslookup host ping whois nmap masscan mail sendmail
        nc ncat netcat socat http.server"""),
    **rules("device", "critical", "destroys the data of a disk", """mkfs mkfs.ext2 mkfs.ext3 mkfs.ext4
        mkfs.xfs mkfs.btrfs mke2fs mkswap wipefs fdisk sfdisk parted blkdiscard hdparm"""),
    **rules("escape", "high", "changes what the process may do", """nsenter unshare chroot umount
        pivot_root setcap capsh insmod modprobe rmmod kexec losetup iptables nft systemctl systemd-run"""),
    **rules("escape", "high", "talks to the container engine", "docker podman kubectl runc ctr crictl"),
    **rules("escape", "high", "acts as another user", "su passwd chpasswd useradd usermod visudo"),
    **rules("escape", "medium", "acts as another user", "sudo doas"),
    **rules("inspection", "high", "reaches into other processes", "gdb strace ltrace lldb"),
    **rules("end", "high", "stops the machine", "shutdown reboot halt poweroff telinit"),
    **rules("environment", "medium", "shows all environment variables", "printenv"),
    **rules("signal", "medium", "can end other processes", "pkill killall killall5"),
    **rules("signal", "low", "ends other processes", "kill"),
    **rules("process", "medium", "leaves something running", "screen tmux crontab at batch"),
    **rules("install", "low", "installs software", "yarn gem cargo"),
    **rules("install", "medium", "runs what it installs", "npx bunx uvx pipx"),
    **rules("code", "low", "runs a file as code", "source ."),
    **rules("mining", "critical", "mines coins", "xmrig minerd cpuminer ethminer t-rex"),
}  # fmt: skip

_CALLS = r"(system2?|exec|p?open[23]|popen|spawn|shell_exec|passthru|proc_open|f?sock\w*)"
_ARGUMENTS: list[tuple[str, str, str, Level, str]] = [
    ("rm", r"--no-preserve-root", "delete", "critical", "deletes the root directory as well"),
    ("kill", r"(^| )-?1$", "signal", "critical", "ends every process"),
    ("nc ncat netcat socat", r"(^| )-\w*[ec]( |$)|(^| |,)exec:", "network", "critical",
     "gives a program to a connection"),
    ("chmod", r"^[0-7]?[4-7][0-7]{3} |[+=][rwx]{0,3}s", "escape", "high", "gives its owner's rights"),
    ("mount", r"(^| )([^-]|-a)", "escape", "high", "changes what is mounted"),
    ("sysctl", r"=|(^| )-[wp]", "escape", "high", "changes settings of the system"),
    ("tar", r"--(checkpoint-action|to-command|use-compress)", "process", "high", "runs a program"),
    ("perl ruby php R Rscript lua awk gawk mawk osascript tclsh",
     rf"\b{_CALLS}(\s*\(|\s+[\"'q])|^-\w*[er]\w* .?`|\bIO[.:]|TCPSocket|\|&?\s*getline|/inet/|os\.execute",
     "process", "high", "runs a program or connects"),
    ("git", r"^(-\S+ )*(clone|fetch|pull|push)\b", "network", "low", "uses the network"),
    ("pip pip3 npm uv conda mamba", r"\b(install|add|i|ci)\b.*://", "install", "medium", "installs a URL"),
    ("pip pip3 npm uv conda mamba apt apt-get", r"\b(install|download|add|i|ci)\b", "install", "low",
     "installs software"),
]  # fmt: skip
ARGUMENTS = [
    (names(commands), re.compile(pattern), Rule(rule, level, reason))
    for commands, pattern, rule, level, reason in _ARGUMENTS
]
"""Commands, a pattern of their arguments (joined by spaces), and its meaning."""

SHELLS = names("sh bash dash zsh ksh ash fish rbash")
INTERPRETERS: dict[str, Language] = {
    **dict.fromkeys(SHELLS, "shell"),
    **dict.fromkeys(["python", "python2", "python3"], "python"),
    "node": "javascript",
}
DOWNLOADERS = names("curl wget fetch aria2c nc ncat http https lynx")

WRAPPERS = names("""
    command exec nohup nice ionice time timeout stdbuf setsid env sudo doas xargs busybox watch taskset
    flock""")
"""Commands that run the command in their arguments."""
PATTERN_FIRST = names("grep egrep fgrep rg sed awk gawk mawk jq")
"""Commands whose first argument is not a path."""
NO_PATHS = names("echo printf test [")
WRITERS: dict[str, int] = {
    **dict.fromkeys(["tee", "touch", "mkdir", "truncate", "mkfifo", "shred", "mv"], 0),
    **dict.fromkeys(["chmod", "chown"], 1),
    **dict.fromkeys(["cp", "ln", "install"], -1),
}
"""Commands and the first of the arguments that they write to."""
WRITING_OPTIONS: dict[str, str] = {
    "curl": r"-\w*[oD]|--output", "wget": r"-\w*[OP]|--directory-prefix|--output-document", "dd": "of",
    "unzip": "-d", "sort": r"-o|--output", "gpg": r"-o|--output", "cp": "-t|--target-directory",
}  # fmt: skip
"""Options with a path that the command writes to."""
KNOWN = frozenset([*COMMANDS, *INTERPRETERS, *WRAPPERS, *WRITERS, "rm", "find", "eval"])
