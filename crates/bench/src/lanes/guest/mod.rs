//! Virtual machines of one core without an operating system, whose vCPU threads take turns like any other: one that
//! runs a busy loop ([`Guest`]), and one that serves ([`GuestServer`]).
//!
//! A guest's memory is a file that the benchmark maps. QEMU emulates the processor (TCG) where there is no KVM; a guest's
//! time stamp counter is the host's, but for where it began.

mod serve;
mod spin;

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use quell_model::CoreSet;

use super::sharing::PATIENCE;
use crate::host::{Policy, Program, set_policy};
use quell_terminal::Stop;

pub use serve::{GuestServer, RINGS_AT, make_memory};
pub use spin::Guest;

const MEMORY_BYTES: usize = 16 << 20;
const SECTOR_BYTES: usize = 512;
const QEMU: &str = "qemu-system-x86_64";

/// A guest's QEMU.
struct Machine {
    program: Program,
}

impl Machine {
    /// Starts one that boots a sector. `bell`: a named pipe, each byte of which is an interrupt of the guest's first serial
    /// port.
    fn start(memory: &Path, sector: &[u8; SECTOR_BYTES], bell: Option<&Path>) -> Result<Machine> {
        let disk = memory.with_extension("disk");
        std::fs::write(&disk, sector)?;
        let mut command = Command::new(QEMU);
        command.args(["-machine", "pc,memory-backend=memory", "-accel", "tcg", "-m", "16M"]);
        command.args(["-nodefaults", "-display", "none", "-name", "lane,debug-threads=on"]);
        let file = option("memory-backend-file,id=memory,size=16M,share=on,mem-path=", memory);
        command.arg("-object").arg(file);
        command.arg("-drive").arg(option("if=floppy,format=raw,file=", &disk));
        if let Some(bell) = bell {
            command.arg("-chardev").arg(option("pipe,id=bell,path=", bell));
            command.args(["-serial", "chardev:bell"]);
        }
        Ok(Machine { program: Program::start(QEMU, &mut command)? })
    }

    /// Waits until the guest shows that it has come so far.
    fn wait_for(&mut self, come: impl Fn() -> bool, stop: &Stop) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while !come() {
            self.check()?;
            ensure!(Instant::now() < until, "the guest does not boot");
            stop.sleep(Duration::from_millis(5))?;
        }
        Ok(())
    }

    /// Fails if it is over.
    fn check(&mut self) -> Result<()> {
        self.program.check()
    }

    /// The process, whose first thread does what is no vCPU's: it reads the bell.
    fn pid(&self) -> i32 {
        self.program.pid()
    }

    /// Puts all its threads on cores.
    fn pin(&self, cores: &CoreSet) -> Result<()> {
        self.program.pin(cores)
    }

    /// Gives its first thread a priority.
    fn raise(&self, priority: i32) -> Result<()> {
        Ok(set_policy(self.pid(), Policy::Fifo(priority))?)
    }

    /// The thread that is its vCPU: QEMU names them.
    fn vcpu(&self) -> Result<i32> {
        for tid in self.program.threads()? {
            let name = std::fs::read_to_string(format!("/proc/{}/task/{tid}/comm", self.pid()));
            if name.is_ok_and(|name| name.starts_with("CPU 0")) {
                return Ok(tid);
            }
        }
        bail!("{} has no thread that is a vCPU", self.program.name())
    }
}

fn option(start: &str, path: &Path) -> OsString {
    let mut text = OsString::from(start);
    text.push(path);
    text
}
