"""Attacks in other languages, whose programs are started anew and may have processes; and on their compilers."""

from dataclasses import replace
from typing import Any

from sandbox.attacks.attack import DEFAULT_LIMITS, ONE_SECOND, Attack, Family, Layer

_PRINTS = ({"stdin": "", "stdout": "breached"},)
_PRINTS_TOKEN = ({"stdin": "", "stdout": "@token@"},)
_WRITES: dict[str, Any] = {"files": {}}
_SYSTEM_HEADERS = ("sys/mman", "sys/socket", "sys/ptrace", "sys/syscall", "sys/wait")
_HEADERS = ("stdio", "errno", "unistd", "fcntl", "signal", *_SYSTEM_HEADERS)
_INCLUDES = [f"#include <{header}.h>" for header in _HEADERS]

# Nine macros, each ten times the one before: ten characters to a thousand million.
_MACROS = "#define M0 x+\nint x;\n" + "".join(f"#define M{n} {f'M{n - 1} ' * 10}\n" for n in range(1, 10))


def _bash(name: str, success: str, layer: Layer, program: str, **rest: Any) -> Attack:
    return Attack(name, success, layer, program, language="bash", **{"tests": _PRINTS, "entry_point": None, **rest})


def _c(name: str, success: str, layer: Layer, body: str, **rest: Any) -> Attack:
    """`body` returns from main with errno set when it was refused, and falls through when it was not."""
    refused = 'int refused(void) { perror("attack"); return 1; }'
    program = "\n".join([*_INCLUDES, refused, "int main(void) {", body, 'puts("breached"); return 0; }'])
    return Attack(name, success, layer, program, language="c", **{"tests": _PRINTS, "entry_point": None, **rest})


def _javascript(name: str, success: str, layer: Layer, program: str, **rest: Any) -> Attack:
    return Attack(
        name, success, layer, program, language="javascript", **{"tests": _PRINTS, "entry_point": None, **rest}
    )


FAMILY = Family(
    "languages",
    "the same from bash, C and JavaScript, which may have processes, and through their compilers",
    (
        _bash("bash: more processes than allowed", "two hundred processes", "resource limits",
              "for i in $(seq 200); do sleep 8 & done; sleep 2; echo breached"),
        _bash("bash: processes that double", "hundreds of processes", "resource limits",
              "f() { printf x; if [ $1 -gt 0 ]; then f $(($1 - 1)) & f $(($1 - 1)) & fi; sleep 3; }; f 8",
              tests=({"stdin": "", "stdout": "x" * 511},)),
        _bash("bash: a process in the background", "it outlives the verdict", "end of the group",
              "sleep 30 & disown; echo done", tests=_PRINTS_TOKEN),
        _bash("bash: a process that ignores signals", "it outlives the verdict", "end of the group",
              "(trap '' HUP TERM INT QUIT; sleep 30; sleep 30) & echo done", tests=_PRINTS_TOKEN),
        _bash("bash: a double fork", "it outlives the verdict", "end of the group",
              "( ( sleep 30 & ) & ); echo done", tests=_PRINTS_TOKEN),
        _bash("bash: a session of its own", "it outlives the verdict", "end of the group",
              "setsid sleep 30 & set -m; sleep 30 & nohup sleep 30 & echo done", tests=_PRINTS_TOKEN),
        _bash("bash: children that use the time", "they run for longer than its second", "clock in the host",
              "for i in 1 2; do (while [ $SECONDS -lt 4 ]; do :; done) & done; wait; echo breached", limits=ONE_SECOND),
        _bash("bash: memory in small pieces", "480 MB are held by six processes", "resource limits",
              "for i in 1 2 3 4 5 6; do (head -c 80M /dev/zero | tail -n 1 | sleep 3) & done; wait; echo breached"),
        _bash("bash: a file of the host", "the token in the file comes back", "Landlock",
              "cat @secret@", tests=_PRINTS_TOKEN, succeeds_without=("Landlock",)),
        _bash("bash: a new file outside", "a file appears outside", "Landlock",
              "echo x > @outdoors@/new && echo breached", succeeds_without=("Landlock", "resource limits")),
        _bash("bash: a connection", "the connection arrives", "system-call filter",
              "exec 3<>/dev/tcp/127.0.0.1/@port@ && echo breached",
              succeeds_without=("system-call filter", "Landlock")),
        _bash("bash: the environment", "a variable of the host is there", "clean start",
              '[ -n "$SANDBOX_CANARY" ] || { echo nothing found >&2; exit 1; }; echo "$SANDBOX_CANARY"',
              tests=_PRINTS_TOKEN),
        _bash("bash: another process", "it stands still", "system-call filter",
              "kill -STOP @victim@ && echo breached"),
        _bash("bash: the process that started it", "it can be signalled", "system-call filter",
              "kill -0 $PPID && echo breached"),
        _bash("bash: stopping itself", "whoever waits for its end waits for ever", "clock in the host",
              "kill -STOP $$; echo breached", limits=ONE_SECOND),
        _bash("bash: environment of the host process", "it comes back", "Landlock",
              "cat /proc/@host@/environ /proc/$PPID/environ && echo breached"),
        _bash("bash: a user namespace", "root inside, and more of the kernel to attack", "system-call filter",
              "unshare -r true && echo breached"),
        _bash("bash: a program that is set-uid", "it runs as root", "dropped privileges",
              '[ "$(su -c "id -u" 2>&1 </dev/null)" = 0 ] && echo breached || { echo nothing found >&2; exit 1; }'),
        _bash("bash: a program of its own making", "it starts what nobody has looked at", "Landlock",
              "printf '#!/bin/sh\\necho breached\\n' > made; chmod 755 made; ./made", spec=_WRITES),
        _bash("bash: a large file", "the disk is full", "output cap",
              "head -c 60000000 /dev/zero > bomb && echo breached", spec=_WRITES),
        _bash("bash: many files", "the disk has no inodes left", "output cap",
              "for i in $(seq 3000); do : > $i; done; sleep 2; echo breached", spec=_WRITES),
        _bash("bash: files that are open and removed", "the disk is full and nobody sees of what", "output cap",
              "for i in 1 2 3 4; do exec {n}>bomb; rm bomb; head -c 15M /dev/zero >&$n || exit; done\n"
              "sleep 2; echo breached",
              spec=_WRITES),
        _bash("bash: output without end", "all of it is taken", "output cap", "head -c 5M /dev/zero; echo breached"),
        _c("C: a socket", "a socket exists", "system-call filter",
           "if (socket(AF_INET, SOCK_STREAM, 0) < 0) return refused();"),
        _c("C: a fork", "a second process exists", "system-call filter",
           "int child = fork(); if (child < 0) return refused(); if (child == 0) _exit(0); wait(NULL);"),
        _c("C: a daemon", "it outlives the verdict", "system-call filter",
           "int child = fork(); if (child < 0) return refused();"
           "if (child == 0) { setsid(); if (fork() == 0) { sleep(30); } _exit(0); }"),
        _c("C: a file of the host", "the file can be opened", "Landlock",
           'if (open("@secret@", O_RDONLY) < 0) return refused();', succeeds_without=("Landlock",)),
        _c("C: being traced", "the parent gets its signals", "system-call filter",
           "if (ptrace(PTRACE_TRACEME, 0, 0, 0) < 0) return refused();"),
        _c("C: another process", "it can be signalled", "system-call filter",
           "if (kill(@victim@, 0) < 0) return refused();"),
        _c("C: memory above the limit", "two gigabytes are mapped", "resource limits",
           "if (mmap(NULL, 2UL << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)"
           "    return refused();"),
        _c("C: a loop", "it runs for longer than its second", "clock in the host",
           "for (volatile unsigned long n = 0; n < 6000000000UL; n++);", limits=ONE_SECOND),
        _c("C: io_uring", "sockets and files past the filter", "system-call filter",
           "if (syscall(425, 8, NULL) < 0 && errno != EFAULT) return refused();"),
        _c("C: a program in its place", "a shell runs", "Landlock",
           'execl("/bin/sh", "sh", "-c", "echo breached", NULL); return refused();'),
        Attack("C: including a secret", "the compiler's message shows it", "Landlock",
               '#include "@secret@"\nint main(void) { return 0; }',
               language="c", tests=_PRINTS, entry_point=None),
        Attack("C: assembling a secret", "the token becomes part of the program", "Landlock",
               '#include <stdio.h>\n__asm__("secret: .incbin \\"@secret@\\"\\n.byte 0");\nextern char secret[];\n'
               "int main(void) { puts(secret); return 0; }",
               language="c", tests=_PRINTS_TOKEN, entry_point=None, succeeds_without=("Landlock",)),
        Attack("C: a program that compiles to gigabytes", "the disk is full", "resource limits",
               "char bomb[1UL << 30] = {1};\nint main(void) { return bomb[5]; }",
               language="c", tests=_PRINTS, entry_point=None),
        Attack("C: a program that grows in the compiler", "the compiler works for ever", "clock in the host",
               _MACROS + "int main(void) { return M9 0; }",
               language="c", tests=_PRINTS, entry_point=None, limits=replace(DEFAULT_LIMITS, compile_s=2)),
        _javascript("JavaScript: a file of the host", "the token in the file comes back", "Landlock",
                    "console.log(require('fs').readFileSync('@secret@', 'utf8'))", tests=_PRINTS_TOKEN,
                    succeeds_without=("Landlock",)),
        _javascript("JavaScript: a connection", "the connection arrives", "system-call filter",
                    "require('net').connect(@port@, '127.0.0.1', () => { console.log('breached'); process.exit(0) })"),
        _javascript("JavaScript: a command", "another program runs", "Landlock",
                    "console.log(require('child_process').execFileSync('/bin/echo', ['breached']).toString())"),
        _javascript("JavaScript: the environment", "a variable of the host is there", "clean start",
                    "if (!process.env.SANDBOX_CANARY) throw new Error('nothing found')\n"
                    "console.log(process.env.SANDBOX_CANARY)", tests=_PRINTS_TOKEN),
        _javascript("JavaScript: memory above the limit", "a gigabyte is held", "resource limits",
                    "const kept = []; for (let i = 0; i < 16; i++) kept.push(Buffer.alloc(1 << 26, 1));\n"
                    "setTimeout(() => console.log('breached'), 1000)"),
        _javascript("JavaScript: threads without number", "two hundred threads", "resource limits",
                    "const { Worker } = require('worker_threads');\n"
                    "for (let i = 0; i < 100; i++) new Worker('setTimeout(() => {}, 2000)', { eval: true });\n"
                    "setTimeout(() => { console.log('breached'); process.exit(0) }, 3000)"),
        _javascript("JavaScript: a loop", "it runs for longer than its second", "clock in the host",
                    "const end = Date.now() + 3000; while (Date.now() < end); console.log('breached')",
                    limits=ONE_SECOND),
    ),
)  # fmt: skip
