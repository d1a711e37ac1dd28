//! A guest that serves the rings of [`Ring`](super::super::ring::Ring), which lie in its own memory, as the server that is a
//! process does: it polls, or halts until an interrupt of its serial port, which is its bell.
//!
//! Its work is an amount, too, timed by itself before it serves. It tells the time as the host has it, by its time stamp
//! counter and what the host found of that.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use quell_load::now;
use quell_model::{CoreSet, Nanos};

use super::super::ring::Ring;
use super::super::server::{Waits, bell};
use super::super::words::Words;
use super::{MEMORY_BYTES, Machine, SECTOR_BYTES};
use quell_terminal::Stop;

/// Where in the guest's memory the rings are.
pub const RINGS_AT: usize = 1 << 20;
/// Where its program is: the sector goes there.
const PROGRAM_AT: u64 = 2 << 20;
/// QEMU's first thread, which reads the bell, comes before the client and a scheduler on its core, as if it had one of its own:
/// above the rungs of lanes (40), below the kernel's interrupt threads (50).
const BELL_PRIORITY: i32 = 45;
/// Turns of its loop that the guest times in one go.
const SAMPLE_TURNS: f64 = 10_000.0;
/// Between two looks at the guest's clock.
const CLOCK_TIME: Duration = Duration::from_millis(125);
/// How far the middle one of three looks may be from the line through the others: one that is further was of a time that the
/// guest had read a while ago, and had been stopped before it told.
const LOOK_ERROR: Nanos = Nanos::from_micros(5);
/// Looks until three of them are on a line.
const LINE_LOOKS_MAX: u32 = 20;
/// For how long its clock is looked at.
const LOOK_TIME: Nanos = Nanos::from_millis(5);
/// A look at its clock that took longer was disturbed.
const LOOK_WIDTH: Nanos = Nanos::from_micros(2);
/// Tries of a look.
const LOOKS_MAX: u32 = 200;

/// What guest and host tell each other, in words of its memory. Fractions have 32 bits behind the point.
mod at {
    const FIRST: usize = 0x8000 / 8;
    /// Its clock, in ticks, until it serves.
    pub const CLOCK: usize = FIRST;
    /// The fewest ticks of so many turns of its loop.
    pub const FASTEST: usize = FIRST + 1;
    /// The host: it may serve.
    pub const GO: usize = FIRST + 2;
    /// The host: turns in a nanosecond, a fraction.
    pub const TURNS_PER_NS: usize = FIRST + 3;
    /// The host: nanoseconds in a tick, a fraction.
    pub const NS_PER_TICK: usize = FIRST + 4;
    /// The host: ticks at some time.
    pub const BASE_TICKS: usize = FIRST + 5;
    /// The host: that time, in nanoseconds.
    pub const BASE_NS: usize = FIRST + 6;
    /// The host: it halts where there is nothing to do.
    pub const HALTS: usize = FIRST + 7;
    /// The host: entries of a ring.
    pub const CAPACITY: usize = FIRST + 8;
}

// The boot sector: from real mode to 64-bit mode, with the first 16 MiB mapped one to one, and on to the program. Tables of
// pages from 0x1000, of interrupts at 0x4000 with one entry: the serial port's, 0x24, whose handler takes the byte.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .rodata.quell_guest_server, \"a\"",
    ".globl quell_guest_server_sector",
    "quell_guest_server_sector:",
    ".code16",
    "cli",
    "cld",
    "xor ax, ax",
    "mov ds, ax",
    "mov es, ax",
    "mov ss, ax",
    "mov sp, 0x7c00",
    "mov di, 0x1000",
    "mov cx, 0x1000",
    "xor eax, eax",
    "rep stosd",
    "mov word ptr [0x1000], 0x2003",
    "mov word ptr [0x2000], 0x3003",
    "mov di, 0x3000",
    "mov eax, 0x83",
    "2:",
    "mov dword ptr [di], eax",
    "add di, 8",
    "add eax, 0x200000",
    "cmp di, 0x3040",
    "jb 2b",
    "mov dword ptr [0x4240], 0x00087dc0",
    "mov dword ptr [0x4244], 0x8e00",
    "lgdt [0x7de0]",
    "lidt [0x7de6]",
    "mov eax, 0x1000",
    "mov cr3, eax",
    // Physical address extension, long mode, then protected mode with pages.
    "mov eax, cr4",
    "or al, 0x20",
    "mov cr4, eax",
    "mov ecx, 0xc0000080",
    "rdmsr",
    "or ah, 1",
    "wrmsr",
    "mov eax, cr0",
    "or eax, 0x80000001",
    "mov cr0, eax",
    // A far jump to the next instruction, whose segment has 64 bits.
    ".byte 0xea",
    ".word 3f - quell_guest_server_sector + 0x7c00, 8",
    "3:",
    ".code64",
    "mov eax, 0x200000",
    "jmp rax",
    // 0x7dc0: the interrupt. It comes where the guest halts, which keeps nothing in these registers.
    ".org quell_guest_server_sector + 0x1c0",
    "mov edx, 0x3f8",
    "in al, dx",
    "iretq",
    // 0x7dc8: segments of code and data; 0x7de0 and 0x7de6: where segments and interrupts are.
    ".quad 0, 0x00209a0000000000, 0x0000920000000000",
    ".word 23",
    ".long 0x7dc8",
    ".word 0xfff",
    ".long 0x4000",
    ".org quell_guest_server_sector + 510",
    ".byte 0x55, 0xaa",
    ".popsection",
);

// The program. What it keeps: rbp the words it shares with the host, rbx the rings, r12 requests taken, r13 responses put,
// r14 the capacity, r15 the mask of a place. Offsets in the rings are those of `Ring`.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .rodata.quell_guest_server, \"a\"",
    ".globl quell_guest_server_program",
    ".globl quell_guest_server_end",
    "quell_guest_server_program:",
    "jmp 7f",
    // Ticks, to rax.
    "5:",
    "rdtsc",
    "shl rdx, 32",
    "or rax, rdx",
    "ret",
    // Work: rcx turns.
    "6:",
    "dec rcx",
    "jnz 6b",
    "ret",
    "7:",
    "mov ebp, 0x8000",
    "mov ebx, 0x100000",
    // The fastest of many: others were preempted, or a slow core's.
    "mov r8d, 10000",
    "mov r9, -1",
    "2:",
    "call 5b",
    "mov rsi, rax",
    "mov ecx, 10000",
    "call 6b",
    "call 5b",
    "sub rax, rsi",
    "cmp rax, r9",
    "cmovb r9, rax",
    "dec r8d",
    "jnz 2b",
    "mov qword ptr [rbp + 8], r9",
    "2:",
    "call 5b",
    "mov qword ptr [rbp], rax",
    "cmp byte ptr [rbp + 16], 0",
    "je 2b",
    // The interrupt controller: vectors from 0x20, interrupts end by themselves, none but the fourth, the serial port's.
    "mov al, 0x11",
    "out 0x20, al",
    "mov al, 0x20",
    "out 0x21, al",
    "mov al, 4",
    "out 0x21, al",
    "mov al, 3",
    "out 0x21, al",
    "mov al, 0xef",
    "out 0x21, al",
    // The port: connected, a byte at a time, an interrupt for each.
    "mov dx, 0x3fc",
    "mov al, 0x0b",
    "out dx, al",
    "mov dl, 0xfa",
    "xor eax, eax",
    "out dx, al",
    "mov dl, 0xf9",
    "inc eax",
    "out dx, al",
    "mov r12, qword ptr [rbx + 128]",
    "mov r13, qword ptr [rbx + 192]",
    "mov r14, qword ptr [rbp + 64]",
    "lea r15, [r14 - 1]",
    "mov byte ptr [rbx + 384], 1",
    "2:",
    "cmp qword ptr [rbx + 64], r12",
    "jne 4f",
    "cmp byte ptr [rbp + 56], 0",
    "je 2b",
    // Asleep, as `Ring::may_sleep` says it: the exchange is in order with the look after it.
    "mov eax, 1",
    "xchg qword ptr [rbx + 448], rax",
    "cmp qword ptr [rbx + 64], r12",
    "jne 3f",
    // No interrupt comes between these two.
    "sti",
    "hlt",
    "cli",
    "jmp 2b",
    "3:",
    "mov byte ptr [rbx + 448], 0",
    "4:",
    "call 5b",
    "mov rsi, rax",
    "mov rdi, r12",
    "and rdi, r15",
    "shl rdi, 5",
    "add rdi, rbx",
    "mov r8, qword ptr [rdi + 4096]",
    "mov r9, qword ptr [rdi + 4104]",
    "mov rax, qword ptr [rdi + 4112]",
    "inc r12",
    "mov qword ptr [rbx + 128], r12",
    "mul qword ptr [rbp + 24]",
    "shrd rax, rdx, 32",
    "lea rcx, [rax + 1]",
    "call 6b",
    "call 5b",
    "mov r10, rax",
    "sub rax, rsi",
    "mul qword ptr [rbp + 32]",
    "shrd rax, rdx, 32",
    "cmp rax, qword ptr [rbx + 456]",
    "jae 3f",
    "mov qword ptr [rbx + 456], rax",
    "3:",
    "mov rax, r10",
    "sub rax, qword ptr [rbp + 40]",
    "mul qword ptr [rbp + 32]",
    "shrd rax, rdx, 32",
    "add rax, qword ptr [rbp + 48]",
    "mov rdi, r13",
    "and rdi, r15",
    "add rdi, r14",
    "shl rdi, 5",
    "add rdi, rbx",
    "mov qword ptr [rdi + 4096], r8",
    "mov qword ptr [rdi + 4104], r9",
    "mov qword ptr [rdi + 4112], rax",
    "3:",
    "mov rax, r13",
    "sub rax, qword ptr [rbx + 256]",
    "cmp rax, r14",
    "jae 3b",
    "inc r13",
    "mov qword ptr [rbx + 192], r13",
    "jmp 2b",
    "quell_guest_server_end:",
    ".popsection",
);

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    static quell_guest_server_sector: [u8; SECTOR_BYTES];
    static quell_guest_server_program: u8;
    static quell_guest_server_end: u8;
}

/// The boot sector and the program.
#[cfg(target_arch = "x86_64")]
fn code() -> Option<(&'static [u8; SECTOR_BYTES], &'static [u8])> {
    // SAFETY: both are defined above, the end behind the program's first byte in the same section, and are never written.
    unsafe {
        let (first, end) =
            (&raw const quell_guest_server_program, &raw const quell_guest_server_end);
        let length = end.offset_from_unsigned(first);
        Some((&quell_guest_server_sector, std::slice::from_raw_parts(first, length)))
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn code() -> Option<(&'static [u8; SECTOR_BYTES], &'static [u8])> {
    None
}

/// Makes the memory of a guest that will serve, for whoever makes its rings.
///
/// # Errors
/// When the file is there already, or cannot be made.
pub fn make_memory(path: &Path) -> Result<()> {
    let (_, program) = code().context("the guest's program is for x86-64")?;
    let file = File::options().write(true).create_new(true).open(path);
    let file = file.with_context(|| format!("make {}", path.display()))?;
    file.set_len(MEMORY_BYTES as u64)?;
    Ok(file.write_all_at(program, PROGRAM_AT)?)
}

/// A guest that serves.
pub struct GuestServer {
    machine: Machine,
    memory: Words,
    waits: Waits,
    capacity: u64,
}

impl GuestServer {
    /// Boots one whose memory and rings are made. It serves when it is told to.
    ///
    /// # Errors
    /// Where there is no QEMU for it, or it does not boot.
    pub fn boot(path: &Path, waits: Waits, stop: &Stop) -> Result<GuestServer> {
        let (sector, _) = code().context("the guest's program is for x86-64")?;
        let capacity = Ring::open_at(path, RINGS_AT)?.capacity() as u64;
        let memory = Words::open(path)?;
        let bell = bell(path);
        let mut machine = Machine::start(path, sector, Some(&bell))?;
        machine.wait_for(|| memory[at::CLOCK].load(Relaxed) > 0, stop)?;
        Ok(GuestServer { machine, memory, waits, capacity })
    }

    /// Tells it the time, and has it serve. Until then it should have a core that the calling thread is not on.
    ///
    /// # Errors
    /// When its clock does not read, or it is gone.
    pub fn serve(&mut self, stop: &Stop) -> Result<()> {
        let (ns_per_tick, (ticks, time)) = self.line(stop)?;
        let sample_ns = self.memory[at::FASTEST].load(Relaxed) as f64 * ns_per_tick;
        let fraction = |value: f64| (value * (1_u64 << 32) as f64) as u64;
        let words = [
            (at::TURNS_PER_NS, fraction(SAMPLE_TURNS / sample_ns.max(1.0))),
            (at::NS_PER_TICK, fraction(ns_per_tick)),
            (at::BASE_TICKS, ticks),
            (at::BASE_NS, time.0),
            (at::HALTS, (self.waits == Waits::Epoll).into()),
            (at::CAPACITY, self.capacity),
        ];
        words.into_iter().for_each(|(word, value)| self.memory[word].store(value, Relaxed));
        // Pairs with the guest's look, whose loads are in order.
        self.memory[at::GO].store(1, Release);
        if self.waits == Waits::Epoll {
            self.machine.raise(BELL_PRIORITY)?;
        }
        self.machine.check()
    }

    /// Nanoseconds in one of its ticks, and its clock and the host's at some time: of three looks that agree.
    fn line(&mut self, stop: &Stop) -> Result<(f64, (u64, Nanos))> {
        let mut first = self.clock(stop)?;
        stop.sleep(CLOCK_TIME)?;
        let mut middle = self.clock(stop)?;
        for _ in 2..LINE_LOOKS_MAX {
            stop.sleep(CLOCK_TIME)?;
            let last = self.clock(stop)?;
            ensure!(first.0 < middle.0 && middle.0 < last.0, "the guest's clock stands still");
            let ns_per_tick = last.1.since(first.1).0 as f64 / (last.0 - first.0) as f64;
            let expected_ns = ns_per_tick * (middle.0 - first.0) as f64;
            if (expected_ns - middle.1.since(first.1).0 as f64).abs() < LOOK_ERROR.0 as f64 {
                return Ok((ns_per_tick, last));
            }
            (first, middle) = (middle, last);
        }
        anyhow::bail!("the guest's clock does not agree with the host's: the host is too busy")
    }

    /// Its clock, and the host's at that time: the narrowest of many looks.
    fn clock(&mut self, stop: &Stop) -> Result<(u64, Nanos)> {
        for _ in 0..LOOKS_MAX {
            let begin = now();
            let (mut before, mut last) = (begin, self.memory[at::CLOCK].load(Acquire));
            let mut best = (Nanos::MAX, 0, begin);
            while before.since(begin) < LOOK_TIME {
                let ticks = self.memory[at::CLOCK].load(Acquire);
                let after = now();
                if ticks != last && after.since(before) < best.0 {
                    best = (after.since(before), ticks, before);
                }
                (before, last) = (after, ticks);
            }
            if best.0 < LOOK_WIDTH {
                return Ok((best.1, best.2));
            }
            self.machine.check()?;
            stop.sleep(Duration::from_millis(5))?;
        }
        anyhow::bail!("the guest's clock does not read: the host is too busy")
    }

    /// The thread that is its vCPU.
    ///
    /// # Errors
    /// When it is gone.
    pub fn vcpu(&self) -> Result<i32> {
        self.machine.vcpu()
    }

    /// Puts all of QEMU's threads on cores.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn pin(&self, cores: &CoreSet) -> Result<()> {
        self.machine.pin(cores)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::ring::{Request, Response};
    use super::super::super::server::{make_bell, open_bell, ring_bell};
    use super::*;
    use crate::host::pin;

    /// What host and guest may disagree about the time at first. On a core of its own a guest is right within microseconds;
    /// here its thread goes from core to core.
    const SKEW: Nanos = Nanos::from_millis(2);

    #[test]
    fn a_guest_answers_each_request_once_whether_it_polls_or_halts() {
        answers_each_once(&|_, _, _| {});
    }

    #[test]
    #[ignore = "test-all: needs a quiet host"]
    fn a_guest_answers_by_the_hosts_clock() {
        answers_each_once(&|told, request, answer| {
            // A host that has just started still adjusts its clock's rate, by 500 parts in a million at most.
            let skew = SKEW + Nanos(now().since(told).0 / 1_000);
            assert!(answer.done + skew > request.due && answer.done < now() + skew);
        });
    }

    /// Asks a guest of each kind. `judge` gets the time since which the guest has the host's clock, the request and its answer.
    fn answers_each_once(judge: &dyn Fn(Nanos, &Request, &Response)) {
        // Tests with lanes take both cores for longer than its clock is looked at.
        let _lock = quell_testkit::host_lock().unwrap();
        for waits in Waits::ALL {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("memory");
            make_memory(&path).unwrap();
            let ring = Ring::create_at(&path, RINGS_AT, 8).unwrap();
            make_bell(&path).unwrap();
            let bell = open_bell(&bell(&path)).unwrap();
            let stop = Stop::default();
            let mut guest = GuestServer::boot(&path, waits, &stop).unwrap();
            assert!(guest.vcpu().unwrap() > guest.machine.pid());
            assert!(!ring.is_ready());
            // Its clock is looked at from another core: on a busy host both could be on one for ever, and never run together.
            let cores = quell_observe::topology::online().unwrap();
            let (own, its) = (cores.iter().next().unwrap(), cores.iter().last().unwrap());
            pin(0, &CoreSet::of(own)).unwrap();
            guest.pin(&CoreSet::of(its)).unwrap();
            guest.serve(&stop).unwrap();
            let told = now();
            for id in 0..40 {
                let request = Request { id, due: now(), service: Nanos::from_micros(2) };
                assert!(ring.ask(&request));
                if ring.must_ring() {
                    ring_bell(&bell);
                }
                let answer = loop {
                    match ring.answered() {
                        Some(answer) => break answer,
                        None => std::thread::yield_now(),
                    }
                };
                assert_eq!((answer.id, answer.due), (id, request.due));
                judge(told, &request, &answer);
            }
            assert!(ring.is_ready() && ring.answered().is_none());
            assert!(ring.shortest().is_some_and(|time| time > Nanos(500)));
        }
    }
}
