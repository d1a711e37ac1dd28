//! Threads that find a channel's inbox taken, and how often.

use std::task::Waker;

/// Threads that are counted: further ones take the place of the one that has asked least.
const MAX: usize = 4;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Askers(Vec<(Waker, u32)>);

impl Askers {
    /// A thread asks. How often it has.
    pub fn count(&mut self, waker: &Waker) -> u32 {
        if let Some((_, count)) = self.0.iter_mut().find(|(known, _)| known.will_wake(waker)) {
            *count += 1;
            return *count;
        }
        if self.0.len() >= MAX {
            let least = self.0.iter().enumerate().min_by_key(|(_, (_, count))| *count);
            if let Some((index, _)) = least {
                self.0.swap_remove(index);
            }
        }
        self.0.push((waker.clone(), 1));
        1
    }

    /// A thread need not ask any more.
    pub fn forget(&mut self, waker: &Waker) {
        self.0.retain(|(known, _)| !known.will_wake(waker));
    }

    /// The reader has read something of its own: what was asked before counts no more.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::Wake;

    use super::*;

    struct Thread;

    impl Wake for Thread {
        fn wake(self: Arc<Thread>) {}
    }

    fn thread() -> Waker {
        Waker::from(Arc::new(Thread))
    }

    #[test]
    fn thread_that_asks_between_many_others_is_counted() {
        let (mut askers, acceptor) = (Askers::default(), thread());
        for count in 1..10 {
            assert_eq!(askers.count(&acceptor), count);
            assert_eq!(askers.count(&thread()), 1, "a new one for each connection");
        }
        assert_eq!(askers.0.len(), MAX);
        askers.forget(&acceptor);
        assert_eq!(askers.count(&acceptor), 1);
        askers.clear();
        assert!(askers.0.is_empty());
    }
}
