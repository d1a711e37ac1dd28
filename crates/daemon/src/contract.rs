//! The daemon's half of the contract with one runtime: memory, bells, and the connection that keeps it in force.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use quell_os::Tid;
use quell_shm::runtime::Memory;
use rustix::event::{EventfdFlags, eventfd};
use rustix::pipe::{PipeFlags, pipe_with};

/// What the daemon keeps. Dropping it ends the registration, once it is in force: the runtime sees its connection closed.
#[derive(Debug)]
pub struct Contract {
    /// Shared with the runtime.
    pub memory: Memory,
    /// Its process, as of when it connected.
    pub process: Tid,
    /// The signal by which a kernel thread wants to be told of a revoke.
    pub signal: Option<i32>,
    /// The runtime's version, as it says.
    pub version: String,
    /// Writing ends, one a kernel thread.
    bells: Vec<OwnedFd>,
    /// Written to by the runtime. Never read here: see [`Contract::asks`].
    asks: OwnedFd,
    connection: UnixStream,
    in_force: bool,
}

/// What the runtime gets, in the order of the protocol.
pub struct Passed(Vec<OwnedFd>);

impl Passed {
    /// To be sent along.
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.0.iter().map(AsFd::as_fd).collect()
    }
}

impl Contract {
    /// Makes both halves for so many kernel threads.
    ///
    /// # Errors
    /// When the kernel has no memory or descriptors left.
    pub fn offer(
        kthreads: u32,
        process: Tid,
        connection: &UnixStream,
    ) -> io::Result<(Contract, Passed)> {
        let (memory, file) = Memory::create(kthreads, u64::from(std::process::id()))?;
        let asks = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let mut passed = vec![file, asks.try_clone()?];
        let mut bells = Vec::with_capacity(kthreads as usize);
        for _ in 0..kthreads {
            let (read, write) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
            passed.push(read);
            bells.push(write);
        }
        let contract = Contract {
            memory,
            process,
            signal: None,
            version: String::new(),
            bells,
            asks,
            connection: connection.try_clone()?,
            in_force: false,
        };
        Ok((contract, Passed(passed)))
    }

    /// From now on the registration lasts as long as this. Before that the connection still has to carry the answer.
    pub fn take_effect(&mut self) {
        self.in_force = true;
    }

    /// Rings the bell of a kernel thread. Never blocks: the flags of this end are the daemon's own. A bell that is not
    /// heard, for it is full or nobody is left, has been rung often enough.
    pub fn ring(&self, kthread: usize) {
        if let Some(bell) = self.bells.get(kthread) {
            let _ = rustix::io::write(bell, &[1]);
        }
    }

    /// For an epoll that reports each ring once. It must never be read: the runtime shares its flags, and could make
    /// the reader block.
    pub fn asks(&self) -> BorrowedFd<'_> {
        self.asks.as_fd()
    }
}

impl Drop for Contract {
    fn drop(&mut self) {
        if self.in_force {
            // A connection that is closed already needs nothing.
            let _ = self.connection.shutdown(Shutdown::Both);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{fcntl_getfl, fcntl_setfl};

    #[test]
    fn a_runtime_cannot_make_the_one_who_rings_block() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let (contract, passed) = Contract::offer(1, Tid(1), &ours).unwrap();
        let bell = passed.fds()[2];
        let flags = fcntl_getfl(bell).unwrap();
        fcntl_setfl(bell, flags - rustix::fs::OFlags::NONBLOCK).unwrap();
        // More than any pipe holds.
        (0..100_000).for_each(|_| contract.ring(0));
        assert_eq!(rustix::io::read(bell, &mut [0u8; 1]), Ok(1));
        contract.ring(1);
    }

    #[test]
    fn a_connection_closes_with_its_contract_but_stays_for_the_answer_that_there_is_none() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        drop(Contract::offer(2, Tid(1), &ours).unwrap());
        std::io::Write::write_all(&mut ours, b"no").unwrap();
        assert_eq!(rustix::io::read(&theirs, &mut [0u8; 4]), Ok(2));
        let (mut contract, _passed) = Contract::offer(2, Tid(1), &ours).unwrap();
        contract.take_effect();
        drop(contract);
        assert_eq!(rustix::io::read(&theirs, &mut [0u8; 1]), Ok(0));
    }
}
