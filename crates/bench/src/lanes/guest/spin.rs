//! A guest that runs nothing but a busy loop, of 512 bytes. It notes turns and gaps by its time stamp counter.
#![allow(unsafe_code)]

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use quell_load::now;
use quell_model::{CoreSet, Nanos};

use super::super::program::Noted;
use super::super::words::Words;
use super::{MEMORY_BYTES, Machine, SECTOR_BYTES};
use quell_terminal::Stop;

/// Where the guest notes things, in words of its memory.
mod at {
    /// Turns of the loop.
    pub const UNITS: usize = 0x8000 / 8;
    /// Gaps that it noted so far.
    pub const GAPS: usize = 0x8008 / 8;
    /// The low half of its clock, as last read.
    pub const CLOCK: usize = 0x8010 / 8;
    /// Pairs of a turn and the gap after it, in ticks: the last 8,192.
    pub const NOTES: usize = 0x1_0000 / 8;
    pub const NOTES_COUNT: u64 = 8_192;
}

// The boot sector, which a BIOS loads to 0x7c00 and enters in real mode. What it keeps: ebp the last reading of the clock,
// esi the start of the turn, ebx what counts as a gap, di the place of the next note, which wraps with its segment.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .rodata.quell_guest, \"a\"",
    ".globl quell_guest_sector",
    "quell_guest_sector:",
    ".code16",
    "cli",
    "xor ax, ax",
    "mov ds, ax",
    "mov ax, 0x1000",
    "mov es, ax",
    "xor edi, edi",
    "mov dword ptr [0x8000], 0",
    "mov dword ptr [0x8004], 0",
    "mov dword ptr [0x8008], 0",
    "mov dword ptr [0x800c], 0",
    "mov ebx, dword ptr [0x7dfa]",
    "rdtsc",
    "mov ebp, eax",
    "mov esi, eax",
    "2:",
    "rdtsc",
    "mov dword ptr [0x8010], eax",
    "mov ecx, eax",
    "sub ecx, ebp",
    "mov ebp, eax",
    "add dword ptr [0x8000], 1",
    "adc dword ptr [0x8004], 0",
    "cmp ecx, ebx",
    "jb 2b",
    "sub eax, ecx",
    "sub eax, esi",
    "mov dword ptr es:[di], eax",
    "mov dword ptr es:[di + 4], ecx",
    "add di, 8",
    "mov esi, ebp",
    "add dword ptr [0x8008], 1",
    "jmp 2b",
    // What counts as a gap, in ticks, is filled in before it boots.
    ".org quell_guest_sector + 506",
    ".long 0",
    ".byte 0x55, 0xaa",
    ".code64",
    ".popsection",
);

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    static quell_guest_sector: [u8; SECTOR_BYTES];
}

/// The boot sector, with what counts as a gap.
#[cfg(target_arch = "x86_64")]
fn sector(gap_ticks: u32) -> Option<[u8; SECTOR_BYTES]> {
    // SAFETY: defined above, as long as this, and never written.
    let mut sector = unsafe { quell_guest_sector };
    sector[506..510].copy_from_slice(&gap_ticks.to_le_bytes());
    Some(sector)
}

#[cfg(not(target_arch = "x86_64"))]
fn sector(_: u32) -> Option<[u8; SECTOR_BYTES]> {
    None
}

/// A guest that runs.
pub struct Guest {
    machine: Machine,
    memory: Words,
}

impl Guest {
    /// Boots one.
    ///
    /// # Errors
    /// Where there is no QEMU for it, or it does not boot.
    pub fn boot(directory: &Path, name: &str, stop: &Stop) -> Result<Guest> {
        // Some 2 us on clocks of 1 to 4 GHz; the loop takes a tenth of that when emulated.
        let sector = sector(5_000).context("the guest's program is for x86-64")?;
        let file = directory.join(format!("{name}.memory"));
        let memory = Words::create(&file, MEMORY_BYTES / 8)?;
        let mut machine = Machine::start(&file, &sector, None)?;
        machine.wait_for(|| memory[at::UNITS].load(Relaxed) > 0, stop)?;
        Ok(Guest { machine, memory })
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

    /// What it does for a time, noted by itself. It goes on.
    ///
    /// # Errors
    /// When it is gone, or a stop was asked for.
    pub fn note(&mut self, time: Duration, stop: &Stop) -> Result<Noted> {
        let before = self.reading();
        // Its clock's low half must not wrap around: a second at a time.
        let mut ticks = 0_u64;
        let mut last = before.clock;
        let until = Instant::now() + time;
        while Instant::now() < until {
            stop.sleep(Duration::from_millis(100).min(time))?;
            let clock = self.reading().clock;
            ticks += u64::from(clock.wrapping_sub(last));
            last = clock;
        }
        self.machine.check()?;
        let after = self.reading();
        ticks += u64::from(after.clock.wrapping_sub(last));
        let ns = after.at.since(before.at).0;
        ensure!(ticks > 0, "the guest stands still");
        let ns_per_tick = ns as f64 / ticks as f64;
        let gaps = after.gaps.wrapping_sub(before.gaps).min(at::NOTES_COUNT);
        let mut noted =
            Noted { units: after.units.wrapping_sub(before.units), ns, ..Noted::default() };
        for nth in 1..=gaps {
            let place = (after.gaps.wrapping_sub(nth) % at::NOTES_COUNT) as usize;
            let pair = self.memory[at::NOTES + place].load(Relaxed);
            let nanos = |ticks: u64| (ticks as f64 * ns_per_tick) as u32;
            noted.turns.push(nanos(pair & u64::from(u32::MAX)));
            noted.between.push(nanos(pair >> 32));
        }
        Ok(noted)
    }

    fn reading(&self) -> Reading {
        // Words that the guest writes one by one: each stands alone.
        Reading {
            at: now(),
            units: self.memory[at::UNITS].load(Relaxed),
            gaps: self.memory[at::GAPS].load(Relaxed),
            clock: self.memory[at::CLOCK].load(Relaxed) as u32,
        }
    }
}

/// What a guest noted so far.
struct Reading {
    at: Nanos,
    units: u64,
    gaps: u64,
    clock: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_boots_and_counts_its_turns_of_the_loop() {
        // Tests with lanes take both cores for longer than its clock is looked at.
        let _lock = quell_testkit::host_lock().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let stop = Stop::default();
        let mut guest = Guest::boot(directory.path(), "guest", &stop).unwrap();
        assert!(guest.vcpu().unwrap() > guest.machine.pid());
        let noted = guest.note(Duration::from_millis(200), &stop).unwrap();
        assert!(noted.units > 0 && noted.ns >= 200_000_000);
        assert_eq!(noted.turns.len(), noted.between.len());
    }
}
