//! Commands to the scheduler thread.
//!
//! The scheduler thread owns observer, policy, executor and back end alone; everybody else asks it. A
//! sender puts a command in a bounded channel and then rings an eventfd, on which the thread sleeps in
//! the shared pattern; in the dedicated pattern it looks into the channel once a tick.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use rustix::event::{EventfdFlags, eventfd};

/// Commands waiting at most; senders block beyond that.
const COMMANDS_MAX: usize = 64;
/// How long a command may take before its sender gives up. Restoring thousands of threads is one.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a command that nobody waits for may wait for room.
const POST_TIMEOUT: Duration = Duration::from_secs(1);

/// The receiving end, owned by the scheduler thread.
pub struct Mailbox<C> {
    commands: Receiver<C>,
    bell: Arc<OwnedFd>,
}

/// The sending end.
pub struct Postbox<C> {
    commands: Sender<C>,
    bell: Arc<OwnedFd>,
}

impl<C> Clone for Postbox<C> {
    fn clone(&self) -> Self {
        Postbox { commands: self.commands.clone(), bell: Arc::clone(&self.bell) }
    }
}

/// The scheduler thread is gone or does not answer.
#[derive(Debug, thiserror::Error)]
#[error("the scheduler thread does not answer; `quell restore` gives everything back")]
pub struct NoAnswer;

/// A new pair.
///
/// # Errors
/// When the eventfd cannot be made.
pub fn pair<C>() -> io::Result<(Postbox<C>, Mailbox<C>)> {
    let (sender, receiver) = bounded(COMMANDS_MAX);
    let bell = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
    Ok((
        Postbox { commands: sender, bell: Arc::clone(&bell) },
        Mailbox { commands: receiver, bell },
    ))
}

impl<C> Mailbox<C> {
    /// The next command, if one is there. No system call.
    pub fn take(&self) -> Option<C> {
        self.commands.try_recv().ok()
    }

    /// Readable when a command came, until [`hush`](Self::hush).
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Silences the bell: to be called when it ended a sleep, and before commands are taken. A command may be taken
    /// before its ring comes, so taking them cannot silence it, and a bell that still rings would end every sleep.
    pub fn hush(&self) {
        // A bell that is silent already is as good.
        let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
    }
}

impl<C> Postbox<C> {
    /// Leaves a command that has time until the next tick: the thread is not woken for it, unless the box is
    /// full. One that finds no room, or nobody, is lost.
    pub fn post(&self, command: C) {
        let Err(TrySendError::Full(command)) = self.commands.try_send(command) else { return };
        // A bell that cannot be rung has been rung too often to be missed.
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
        let _ = self.commands.send_timeout(command, POST_TIMEOUT);
    }

    /// Leaves a command and wakes the thread for it, without waiting. `false` if there is no room, or nobody.
    pub fn tell(&self, command: C) -> bool {
        let sent = self.commands.try_send(command).is_ok();
        // A bell that cannot be rung has been rung too often to be missed.
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
        sent
    }

    /// Sends a command that carries its own way back, and waits for the answer.
    ///
    /// # Errors
    /// [`NoAnswer`] when the thread is gone or silent.
    pub fn call<T>(&self, command: impl FnOnce(Sender<T>) -> C) -> Result<T, NoAnswer> {
        let (reply, answer) = bounded(1);
        self.commands.send_timeout(command(reply), REPLY_TIMEOUT).map_err(|_| NoAnswer)?;
        rustix::io::write(&*self.bell, &1u64.to_ne_bytes()).map_err(|_| NoAnswer)?;
        answer.recv_timeout(REPLY_TIMEOUT).map_err(|_| NoAnswer)
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    #[test]
    fn a_call_is_answered_and_rings() {
        let (postbox, mailbox) = pair::<Sender<u32>>().unwrap();
        let asker = std::thread::spawn(move || postbox.call(|reply| reply));
        let reply = loop {
            if let Some(reply) = mailbox.take() {
                break reply;
            }
            std::thread::yield_now();
        };
        reply.send(7).unwrap();
        assert_eq!(asker.join().unwrap().unwrap(), 7);
    }

    #[test]
    fn ring_that_comes_after_its_command_was_taken_ends_one_sleep_only() {
        let (postbox, mailbox) = pair::<u32>().unwrap();
        let rings = || {
            let mut bell = [PollFd::from_borrowed_fd(mailbox.bell(), PollFlags::IN)];
            poll(&mut bell, Some(&Timespec::default())).unwrap() > 0
        };
        postbox.commands.send(1).unwrap();
        assert_eq!(mailbox.take(), Some(1));
        rustix::io::write(&*postbox.bell, &1u64.to_ne_bytes()).unwrap();
        assert!(rings());
        mailbox.hush();
        assert!(mailbox.take().is_none() && !rings());
        // Silenced before it is taken, a command is not lost.
        assert!(postbox.tell(2) && rings());
        mailbox.hush();
        assert_eq!((rings(), mailbox.take()), (false, Some(2)));
    }

    #[test]
    fn posted_commands_wait_without_ringing_until_the_box_is_full() {
        let (postbox, mailbox) = pair::<usize>().unwrap();
        (0..COMMANDS_MAX).for_each(|nth| postbox.post(nth));
        let rings = || rustix::io::read(mailbox.bell(), &mut [0u8; 8]);
        assert!(rings().is_err(), "nobody was woken");
        let poster = std::thread::spawn(move || postbox.post(COMMANDS_MAX));
        while rings().is_err() {
            std::thread::yield_now();
        }
        for nth in 0..=COMMANDS_MAX {
            let taken = std::iter::repeat_with(|| mailbox.take()).flatten().next();
            assert_eq!(taken, Some(nth));
        }
        poster.join().unwrap();
    }

    #[test]
    fn a_gone_receiver_is_an_error() {
        let (postbox, mailbox) = pair::<Sender<u32>>().unwrap();
        drop(mailbox);
        assert!(postbox.call(|reply| reply).is_err());
    }
}
