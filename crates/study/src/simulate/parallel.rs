//! Independent simulations, several at one time.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Result, bail};

/// Does `work` for each item on so many threads. Results are in the order of the items.
///
/// # Errors
/// The first that `work` returns; items that nobody has taken by then are left out.
pub fn for_each<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    // Relaxed: who takes which item guards no other data.
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(items.len()));
    let worker = || -> Result<()> {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return Ok(()) };
            let result = work(item).inspect_err(|_| next.store(items.len(), Ordering::Relaxed))?;
            done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((at, result));
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(result) => result,
            Err(_) => bail!("a simulation failed; run it alone with its parameters"),
        })
    })?;
    let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_unstable_by_key(|(at, _)| *at);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_order_and_the_first_error_ends_it() {
        let items: Vec<u32> = (0..100).collect();
        let double = for_each(&items, 3, |item| Ok(2 * item)).unwrap();
        assert!(double.iter().enumerate().all(|(at, twice)| *twice == 2 * at as u32));
        let failed = for_each(&items, 3, |item| match item {
            50 => bail!("fifty"),
            _ => Ok(()),
        });
        assert_eq!(failed.unwrap_err().to_string(), "fifty");
    }
}
