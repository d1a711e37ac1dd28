#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A lane in Python, with nothing but the standard library: programs take turns on a core by a table.

    sudo ./lanes.py [--core 1] [--table A,B,A,C] [--slice-ms 5] [--seconds 2] [-- COMMAND..]

The levels are those of quell_lane.h. This process is the switcher: it sleeps on the lane's core above everybody, and
when a slice is over it raises the next program and then lowers the last one, in this order. Each COMMAND is one
program (A, B, C, ..., run by a shell); without any, there are as many busy loops as the table has names.

At the end a line for each: its name and its share of the CPU time of all. With the table A,B,A,C and busy loops that
is about 0.50 for A and 0.25 for B and C each. Afterwards everything is as it was: the programs, which belong to this
example, are ended, and this process has its policy back.

`quell lane run --table A,B,A,C` does the same with slices of microseconds, for programs of several threads, and skips
those that sleep; this is what it rests on.
"""
import argparse
import os
import resource
import signal
import subprocess
import sys
import time

PARKED, RUNNING, SWITCHER = 4, 6, 7
BUSY = "while :; do :; done"
# More than any kernel has.
CORES_MAX = 8192
ENDS = signal.SIGTERM, signal.SIGHUP


def level(pid, priority):
    """Explicit in policy and priority; what the program starts begins as an ordinary one."""
    policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
    os.sched_setscheduler(pid, policy, os.sched_param(priority))


def usable_cores():
    """Those that this process may use, whatever it keeps to now."""
    had = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(CORES_MAX))
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, had)
    return usable


def end(number, _frame):
    """A signal ends this process as an error would: what is to be put back is."""
    raise SystemExit(128 + number)


def start(command, core):
    """A program on the core that waits for its first turn."""
    program = subprocess.Popen(["sh", "-c", "kill -STOP $$; exec sh -c \"$0\"", command])
    try:
        os.waitpid(program.pid, os.WUNTRACED)
        level(program.pid, PARKED)
        os.sched_setaffinity(program.pid, {core})
        os.kill(program.pid, signal.SIGCONT)
    except BaseException:
        # Nobody else knows of it yet: it would stay, stopped.
        program.kill()
        program.wait()
        raise
    return program


def cpu_seconds(pid):
    """The CPU time of a process, its own, as /proc has it."""
    with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
        return int(file.read().split()[0]) / 1e9


def take_turns(programs, table, slice_s, seconds):
    """Until the time is over or no program is left."""
    end = time.monotonic() + seconds
    last = None
    while time.monotonic() < end:
        for name in table:
            program = programs[name]
            if program.poll() is not None:
                continue
            if program is not last:
                level(program.pid, RUNNING)
                if last and last.poll() is None:
                    level(last.pid, PARKED)
                last = program
            time.sleep(slice_s)
        if all(program.poll() is not None for program in programs.values()):
            break


def main():
    parser = argparse.ArgumentParser(description="Programs take turns on a core by a table.")
    parser.add_argument("--core", type=int, default=1)
    parser.add_argument("--table", default="A,B,A,C")
    parser.add_argument("--slice-ms", type=float, default=5)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("command", nargs="*")
    args = parser.parse_args()

    table = args.table.split(",")
    names = sorted(set(table))
    commands = args.command or [BUSY] * len(names)
    if names != [chr(ord("A") + at) for at in range(len(commands))]:
        parser.error(f"the table names {', '.join(names)}, and there are {len(commands)} commands")

    usable = usable_cores()
    if args.core not in usable:
        sys.exit(f"lanes.py: core {args.core} is not there; cores are {', '.join(map(str, sorted(usable)))}")

    for number in ENDS:
        # What is ignored stays so: nohup.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, end)
    had = os.sched_getscheduler(0), os.sched_getparam(0), os.sched_getaffinity(0)
    programs = {}
    try:
        # Before any program is started: this process must never wait for one of them.
        level(0, SWITCHER)
        for name, command in zip(names, commands):
            programs[name] = start(command, args.core)
        os.sched_setaffinity(0, {args.core})
        take_turns(programs, table, args.slice_ms / 1e3, args.seconds)
        used = {n: cpu_seconds(p.pid) for n, p in programs.items() if p.poll() is None}
        for name, seconds in used.items():
            print(f"{name} {seconds / max(sum(used.values()), 1e-9):.2f}")
    except PermissionError as error:
        limit = resource.getrlimit(resource.RLIMIT_RTPRIO)[0]
        sys.exit(
            f"lanes.py: SCHED_FIFO at priority {SWITCHER} is refused ({error}): run it as root, or with CAP_SYS_NICE "
            f"or an RLIMIT_RTPRIO of {SWITCHER} (it is {limit}), in a cgroup with a real-time budget"
        )
    except OSError as error:
        sys.exit(f"lanes.py: core {args.core}: {error}")
    finally:
        # Nothing comes between any more.
        for number in (*ENDS, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        # All of them first: one that is to end behind one that spins on its own level would wait for it.
        for program in programs.values():
            program.kill()
        for program in programs.values():
            program.wait()
        os.sched_setaffinity(0, had[2])
        os.sched_setscheduler(0, had[0], had[1])


if __name__ == "__main__":
    main()
