"""Programs in other languages: right, wrong, broken, greedy, and trying to stay or to get out."""

import os
import signal
import tempfile
import threading
import time
from pathlib import Path

import pytest
from liveness import alive

from sandbox import languages, user
from sandbox.limits import Limits
from sandbox.processes import children
from sandbox.spec import parse_spec
from sandbox.verdicts import Sandbox

LIMITS = Limits(wall_s=10, memory_mb=256, output_kb=64, processes=40)

SUMS = {
    "bash": "read a b\necho $((a + b)) | cat",
    "c": '#include <stdio.h>\nint main(void) { int a, b; scanf("%d %d", &a, &b); printf("%d\\n", a + b); }',
    "cpp": "#include <iostream>\nint main() { int a, b; std::cin >> a >> b; std::cout << a + b; }",
    "javascript": "const fs = require('fs');\n"
    "console.log(fs.readFileSync(0, 'utf8').split(' ').map(Number).reduce((a, b) => a + b));",
}
WAYS = {
    "wrong": {
        "bash": "echo 4",
        "c": "#include <stdio.h>\nint main(void) { puts(\"4\"); }",
        "cpp": "#include <cstdio>\nint main() { std::puts(\"4\"); }",
        "javascript": "console.log(4)",
    },
    "compile_error": {
        "c": "int main(void) { return x; }",
        "cpp": "int main() { std::cout << 1; }",
    },
    "runtime_error": {
        "bash": "echo 3; exit 3",
        "c": "#include <assert.h>\nint main(void) { assert(1 == 2); }",
        "cpp": "#include <stdexcept>\nint main() { throw std::runtime_error(\"no such luck\"); }",
        "javascript": "function f() { null.x }\nf()",
    },
    "timeout": {
        "bash": "while :; do :; done",
        "c": "int main(void) { for (;;) ; }",
        "javascript": "for (;;) ;",
    },
    "memory": {
        "bash": "x=x; while :; do x=$x$x; done",
        "c": "#include <stdlib.h>\n#include <string.h>\nint main(void) { for (;;) memset(malloc(1000), 1, 1000); }",
        "cpp": "#include <vector>\nint main() { std::vector<int> v(1u << 30); return v[5]; }",
        "javascript": "const a = []; for (;;) a.push(new Array(1000).fill(1.5))",
    },
    "output_limit": {
        "bash": "yes",
        "c": "#include <stdio.h>\nint main(void) { for (;;) puts(\"x\"); }",
        "javascript": "for (;;) require('fs').writeSync(1, 'x'.repeat(1000))",
    },
}  # fmt: skip
CASES = [(verdict, language) for verdict, programs in WAYS.items() for language in programs]


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(LIMITS) as opened:
        yield opened


def run(sandbox, language, code, **spec):
    found = languages.LANGUAGES[language]
    if found is not None and found.path is None:
        pytest.skip(f"{found.tool} is not here")
    return sandbox.run_tests(
        code, parse_spec({"language": language, "tests": [{"stdin": "1 2\n", "stdout": "3\n"}], **spec})
    )


@pytest.mark.parametrize("language", SUMS)
def test_a_right_program_passes(sandbox, language):
    result = run(sandbox, language, SUMS[language])
    assert (result.verdicts, result.details) == (("passed",), ("",)), result


@pytest.mark.parametrize(("verdict", "language"), CASES)
def test_each_way_of_failing_has_its_verdict(sandbox, verdict, language):
    sandbox.limits = Limits(wall_s=2 if verdict == "timeout" else 10, memory_mb=256, processes=40)
    result = run(sandbox, language, WAYS[verdict][language])
    assert result.verdicts == (verdict,), result
    assert result.details[0]


def test_details_are_the_runtimes_own_last_words(sandbox):
    details = {language: run(sandbox, language, code).details[0] for language, code in WAYS["runtime_error"].items()}
    assert details["bash"] == "exit status 3"
    assert "SIGABRT" in details["c"]
    assert "Assertion" in details["c"]
    assert "no such luck" in details["cpp"]
    assert details["javascript"].startswith("TypeError: Cannot read properties of null")
    assert details["javascript"].endswith("at f (main.js:1:21)")


def test_compiler_messages_name_the_line(sandbox):
    assert "main.c:2:9" in run(sandbox, "c", "int main(void)\n{return x;}").details[0]


def test_a_compiler_that_takes_too_long_is_a_compile_error(sandbox):
    sandbox.limits = Limits(wall_s=10, compile_s=1)
    slow = "\n".join(f'std::map<int, std::regex> m{i}{{{{1, std::regex("a")}}}};' for i in range(300))
    result = run(sandbox, "cpp", f"#include <map>\n#include <regex>\n{slow}\nint main() {{}}")
    assert result.verdicts == ("compile_error",)
    assert result.details == ("compiler: no end within 1 s",)


def test_compilation_does_not_count_towards_the_time_of_the_tests(sandbox):
    sandbox.limits = Limits(wall_s=0.5)
    assert run(sandbox, "cpp", SUMS["cpp"]).verdicts == ("passed",)


def test_a_missing_tool_is_our_fault_and_names_what_to_install(sandbox, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    result = sandbox.run_tests("", parse_spec({"language": "c", "tests": [{"stdin": "", "stdout": ""}] * 2}))
    assert result.verdicts == ("internal", "internal")
    assert result.details[0] == "gcc is not here: install gcc and libc6-dev"
    assert "gcc and libc6-dev" in languages.table()


def test_what_is_there_is_listed():
    table = languages.table()
    assert set(line.split()[0] for line in table.splitlines()) == set(languages.LANGUAGES)


BOMBS = {
    "forks": "f() { f | f & }\nf\nsleep 5",
    "sleepers": "for i in $(seq 500); do sleep 60 & done\nwait",
    "double forks": "for i in $(seq 500); do (sleep 60 &) & done\nsleep 9",
    "sessions of their own": "for i in $(seq 500); do (setsid sleep 60 || sleep 60) & done\nwait",
}


@pytest.mark.parametrize("how", BOMBS)
def test_a_bomb_of_processes_is_over_soon_and_leaves_none(sandbox, how):
    sandbox.limits = Limits(wall_s=4, processes=40)
    result = run(sandbox, "bash", BOMBS[how])
    assert result.verdicts[0] in {"runtime_error", "timeout", "wrong", "output_limit"}
    assert result.seconds < 8
    assert children(sandbox._zygote._process.pid) == []


@pytest.mark.parametrize("program", ["sleep 60 & echo 3", "(sleep 60 &) ; echo 3", "setsid sleep 60 & echo 3"])
def test_what_a_program_leaves_running_ends_with_it(sandbox, program):
    started = time.monotonic()
    assert run(sandbox, "bash", program).verdicts == ("passed",)
    assert time.monotonic() - started < 5
    assert children(sandbox._zygote._process.pid) == []


def test_memory_is_summed_over_processes(sandbox):
    sandbox.limits = Limits(wall_s=20, memory_mb=128, processes=40)
    # Each holds some 30 MiB: none is above the limit alone.
    hold = "for i in 1 2 3 4 5 6 7 8 9 10; do (x=$(printf '%30000000s'); sleep 20) & done\nwait"
    result = run(sandbox, "bash", hold)
    assert result.verdicts == ("memory",), result
    assert result.seconds < 15


ESCAPES = {
    "reads a file of the host": 'cat /etc/passwd && echo 3',
    "writes to /tmp": 'echo x > "/tmp/sandbox-escape-$$" && echo 3',
    "writes to its directory without having asked": "echo x > x && echo 3",
    "opens a connection": "exec 9<>/dev/tcp/127.0.0.1/22 && echo 3",
    "looks at other processes": "cat /proc/1/cmdline && echo 3",
    "kills its parent": "kill -9 $PPID && echo 3",
    "makes a namespace": "unshare -U true && echo 3",
    "becomes another user": "su -c true && echo 3",
    "loosens its limits": "ulimit -n 4096 && echo 3",
    "takes another session": "setsid -w echo 3",
    "runs what it wrote": "cp /bin/true ./mine && ./mine && echo 3",
}  # fmt: skip


@pytest.mark.parametrize("how", ESCAPES)
def test_a_shell_does_not_get_out(sandbox, how):
    sandbox.limits = LIMITS
    result = run(sandbox, "bash", ESCAPES[how])
    assert result.verdicts != ("passed",), result


def test_a_shell_that_asked_for_files_may_write_read_and_run_them(sandbox):
    sandbox.limits = LIMITS
    program = 'cat given > "made here"; mkdir -p a/b; mv "made here" a/b; ln -s a/b/made\\ here link; cat link; rm -r a'
    assert run(sandbox, "bash", program, files={"given": "3"}).verdicts == ("passed",)


def test_a_c_program_cannot_become_another(sandbox):
    code = '#include <unistd.h>\nint main(void) { execl("/bin/echo", "echo", "3", (char *)0); return 1; }'
    assert run(sandbox, "c", code).verdicts == ("runtime_error",)


def test_the_compiler_reads_nothing_of_the_host(sandbox):
    result = run(sandbox, "c", '#include "/etc/passwd"\nint main(void) {}')
    assert result.verdicts == ("compile_error",)
    assert "root:" not in result.details[0] + result.stderr
    code = '__asm__(".incbin \\"/etc/passwd\\"");\nint main(void) {}'
    assert run(sandbox, "c", code).verdicts == ("compile_error",)


def test_the_environment_is_empty_but_for_five_names(sandbox):
    result = run(sandbox, "bash", "compgen -e | grep -v -e '^_$' -e SHLVL -e PWD | sort | tr '\\n' ' '")
    assert result.stdout.split() == ["HOME", "LANG", "OPENSSL_CONF", "PATH", "TMPDIR"]


def test_no_directory_is_left(sandbox):
    before = set(Path(tempfile.gettempdir()).glob("sandbox-*"))
    for language, code in SUMS.items():
        run(sandbox, language, code)
    assert set(Path(tempfile.gettempdir()).glob("sandbox-*")) <= before


def test_other_kinds_of_test_need_python():
    with pytest.raises(ValueError, match="language c: tests must be"):
        parse_spec({"language": "c", "entry_point": "f", "tests": [{"expected": 1}]})
    with pytest.raises(ValueError, match="language is 'rust'; use one of python, bash, c, cpp, javascript"):
        parse_spec({"language": "rust", "tests": [{"stdin": "", "stdout": ""}]})


def test_the_sum_of_a_user_of_its_own_is_bounded_by_the_kernel(sandbox):
    if sandbox._zygote.uid is None:
        pytest.skip("only root can choose a user, and only one that can read Python's library")
    assert user.has_no_others(sandbox._zygote.uid)
    result = run(sandbox, "bash", "ulimit -u")
    assert result.stdout == "64\n"


def test_when_the_zygote_is_killed_what_a_program_had_started_goes_too():
    with Sandbox(Limits(wall_s=30, processes=40)) as fresh:
        zygote = fresh._zygote._process.pid
        seen: list[int] = []

        def kill() -> None:
            deadline = time.monotonic() + 10
            while len(seen) < 4 and time.monotonic() < deadline:
                seen[:] = [pid for shell in children(zygote) for pid in (shell, *children(shell))]
                time.sleep(0.02)
            os.kill(zygote, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        result = run(fresh, "bash", "sleep 60 & sleep 60 & sleep 60 & wait")
        killer.join()
        assert result.verdicts == ("internal",)
        assert len(seen) == 4
        deadline = time.monotonic() + 5
        while any(map(alive, seen)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not any(map(alive, seen))
        assert run(fresh, "bash", "echo 3").verdicts == ("passed",)
