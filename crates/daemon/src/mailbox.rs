//! Commands to the scheduler threads, and their answers.
//!
//! The scheduler thread owns observer, policy, executor and back end alone; everybody else asks it. A
//! sender puts a command in a ring of fixed size and then rings an eventfd, on which the thread sleeps in
//! the shared pattern; in the dedicated pattern it looks into the ring once a tick. The scheduler of a lane takes
//! its commands in the same way.
//!
//! Real-time threads never wait here for others. A sender may be preempted at any instruction, and stays so while a
//! thread above it runs on its core: a queue whose receiver waits for a send under way would then stop both until the
//! kernel's fair server lets the sender run, for most of a second. So the rings are wait-free at both ends, senders
//! exclude each other by a lock that the receiver never takes, and an answer waits for nobody ([`oneshot`]).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use oneshot::RecvTimeoutError;
use rtrb::{Consumer, Producer, PushError, RingBuffer};
use rustix::event::{EventfdFlags, eventfd};

/// Commands waiting at most; senders wait beyond that.
const COMMANDS_MAX: usize = 64;
/// How long a command may take before its sender gives up. Restoring thousands of threads is one.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a command that nobody waits for may wait for room.
const POST_TIMEOUT: Duration = Duration::from_secs(1);
/// How often a sender looks for room.
const LOOK: Duration = Duration::from_millis(1);

/// The way back of an answer; sending takes no lock.
pub type Reply<T> = oneshot::Sender<T>;

/// The receiving end, owned by a scheduler thread.
pub struct Mailbox<C> {
    commands: Consumer<C>,
    bell: Arc<OwnedFd>,
}

/// The sending end of threads that may wait for each other: none of them runs in real time while others depend on it.
pub struct Postbox<C> {
    commands: Arc<Mutex<Producer<C>>>,
    bell: Arc<OwnedFd>,
}

impl<C> Clone for Postbox<C> {
    fn clone(&self) -> Self {
        Postbox { commands: Arc::clone(&self.commands), bell: Arc::clone(&self.bell) }
    }
}

/// The sending end of one thread, which waits for nobody.
pub struct Line<C> {
    commands: Producer<C>,
    bell: Arc<OwnedFd>,
}

/// The scheduler thread is gone or does not answer.
#[derive(Debug, thiserror::Error)]
#[error("the scheduler thread does not answer; `quell restore` gives everything back")]
pub struct NoAnswer;

/// How often a caller looks whether the thread has ended.
const ANSWER_LOOK: Duration = Duration::from_millis(10);

/// A new pair.
///
/// # Errors
/// When the eventfd cannot be made.
pub fn pair<C>() -> io::Result<(Postbox<C>, Mailbox<C>)> {
    let (sender, commands) = RingBuffer::new(COMMANDS_MAX);
    let bell = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
    let postbox = Postbox { commands: Arc::new(Mutex::new(sender)), bell: Arc::clone(&bell) };
    Ok((postbox, Mailbox { commands, bell }))
}

impl<C> Mailbox<C> {
    /// The next command, if one is there. No system call, no lock.
    pub fn take(&mut self) -> Option<C> {
        self.commands.pop().ok()
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
        let Err(command) = self.push(command) else { return };
        ring(&self.bell);
        let _ = self.send(command, POST_TIMEOUT);
    }

    /// Leaves a command and wakes the thread for it, without waiting for room. `false` if there is none, or nobody.
    pub fn tell(&self, command: C) -> bool {
        let sent = self.push(command).is_ok();
        ring(&self.bell);
        sent
    }

    /// Sends a command that carries its own way back, and waits for the answer.
    ///
    /// # Errors
    /// [`NoAnswer`] when the thread is gone or silent.
    pub fn call<T>(&self, command: impl FnOnce(Reply<T>) -> C) -> Result<T, NoAnswer> {
        let (reply, answer) = oneshot::channel();
        self.send(command(reply), REPLY_TIMEOUT)?;
        ring(&self.bell);
        let until = Instant::now() + REPLY_TIMEOUT;
        loop {
            // A command that the thread left behind at its end lives as long as this box.
            let is_over = self.lock().is_abandoned() || Instant::now() >= until;
            match answer.recv_timeout(ANSWER_LOOK) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Timeout) if !is_over => {}
                Err(_) => return Err(NoAnswer),
            }
        }
    }

    /// Another ring into the thread that sleeps on this bell, for one sender alone.
    pub fn line<D>(&self, commands: Producer<D>) -> Line<D> {
        Line { commands, bell: Arc::clone(&self.bell) }
    }

    fn send(&self, mut command: C, timeout: Duration) -> Result<(), NoAnswer> {
        let until = Instant::now() + timeout;
        while let Err(refused) = self.push(command) {
            if self.lock().is_abandoned() || Instant::now() >= until {
                return Err(NoAnswer);
            }
            command = refused;
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn push(&self, command: C) -> Result<(), C> {
        push(&mut self.lock(), command)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Producer<C>> {
        // A push does not panic halfway.
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C> Line<C> {
    /// Leaves a command and wakes the thread for it. `false` if there is no room, or nobody.
    pub fn tell(&mut self, command: C) -> bool {
        let sent = push(&mut self.commands, command).is_ok();
        ring(&self.bell);
        sent
    }
}

fn push<C>(ring: &mut Producer<C>, command: C) -> Result<(), C> {
    if ring.is_abandoned() {
        return Err(command);
    }
    ring.push(command).map_err(|PushError::Full(command)| command)
}

fn ring(bell: &OwnedFd) {
    // A bell that cannot be rung has been rung too often to be missed.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    #[test]
    fn a_call_is_answered_and_rings() {
        let (postbox, mut mailbox) = pair::<Reply<u32>>().unwrap();
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
    fn a_call_that_the_thread_left_behind_at_its_end_is_not_answered() {
        let (postbox, mailbox) = pair::<Reply<u32>>().unwrap();
        let begun = Instant::now();
        let asker = std::thread::spawn(move || postbox.call(|reply| reply));
        while mailbox.commands.is_empty() {
            std::thread::yield_now();
        }
        drop(mailbox);
        assert!(asker.join().unwrap().is_err());
        assert!(begun.elapsed() < REPLY_TIMEOUT, "it waited as for a thread that is there");
    }

    #[test]
    fn ring_that_comes_after_its_command_was_taken_ends_one_sleep_only() {
        let (postbox, mut mailbox) = pair::<u32>().unwrap();
        let rings = |mailbox: &Mailbox<u32>| {
            let mut bell = [PollFd::from_borrowed_fd(mailbox.bell(), PollFlags::IN)];
            poll(&mut bell, Some(&Timespec::default())).unwrap() > 0
        };
        postbox.push(1).unwrap();
        assert_eq!(mailbox.take(), Some(1));
        ring(&postbox.bell);
        assert!(rings(&mailbox));
        mailbox.hush();
        assert!(mailbox.take().is_none() && !rings(&mailbox));
        // Silenced before it is taken, a command is not lost.
        assert!(postbox.tell(2) && rings(&mailbox));
        mailbox.hush();
        assert_eq!((rings(&mailbox), mailbox.take()), (false, Some(2)));
    }

    #[test]
    fn posted_commands_wait_without_ringing_until_the_box_is_full() {
        let (postbox, mut mailbox) = pair::<usize>().unwrap();
        (0..COMMANDS_MAX).for_each(|nth| postbox.post(nth));
        let rings = |mailbox: &Mailbox<usize>| rustix::io::read(mailbox.bell(), &mut [0u8; 8]);
        assert!(rings(&mailbox).is_err(), "nobody was woken");
        let poster = std::thread::spawn(move || postbox.post(COMMANDS_MAX));
        while rings(&mailbox).is_err() {
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
        let (postbox, mailbox) = pair::<Reply<u32>>().unwrap();
        drop(mailbox);
        assert!(postbox.call(|reply| reply).is_err());
    }

    #[test]
    fn sender_that_is_preempted_halfway_holds_nobody_up() {
        let (postbox, mut mailbox) = pair::<u32>().unwrap();
        let (sender, mut orders) = RingBuffer::new(1);
        let mut line = postbox.line(sender);
        assert!(postbox.tell(1));
        let halfway = postbox.lock();
        // The receiver gets what is there, and finds nothing more; another thread's line works as ever.
        assert_eq!((mailbox.take(), mailbox.take()), (Some(1), None));
        assert!(line.tell(2));
        assert_eq!((orders.pop().ok(), orders.pop().ok()), (Some(2), None));
        drop(halfway);
        drop(orders);
        assert!(!line.tell(3), "nobody is there");
    }
}
