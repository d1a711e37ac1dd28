//! Calls that block, away from uthreads.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Condvar, Mutex};
use std::thread;

use crate::kthread::lock;
use crate::park::{UthreadRef, in_uthread, park_current};

/// Helper threads of the process, at most.
const HELPERS: usize = 8;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Pool {
    jobs: VecDeque<Job>,
    helpers: usize,
    idle: usize,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { jobs: VecDeque::new(), helpers: 0, idle: 0 });
static WORK: Condvar = Condvar::new();

/// Calls `f` on a helper thread while the running uthread is parked; on this thread outside a uthread. A panic goes on
/// here.
pub(crate) fn offload<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    if !in_uthread() {
        return f();
    }
    let mut result = None;
    let place = &mut result;
    let work = move |waiter: UthreadRef| {
        *place = Some(catch_unwind(AssertUnwindSafe(f)));
        waiter.ready();
    };
    park_current(|waiter| {
        let job: Box<dyn FnOnce() + Send + '_> = Box::new(move || work(waiter));
        // SAFETY: it borrows from the frame of the uthread, which stays parked until the job has made it ready, its last step.
        let job = unsafe { std::mem::transmute::<Box<dyn FnOnce() + Send + '_>, Job>(job) };
        submit(job);
    });
    match result {
        Some(Ok(result)) => result,
        Some(Err(panic)) => resume_unwind(panic),
        None => unreachable!("made ready by the job alone, which leaves a result"),
    }
}

/// Hands a job to a helper, which is started if none is idle; without any helper it runs here.
fn submit(job: Job) {
    let mut pool = lock(&POOL);
    pool.jobs.push_back(job);
    if pool.idle < pool.jobs.len() && pool.helpers < HELPERS {
        match thread::Builder::new().name("quell-offload".into()).spawn(help) {
            Ok(_) => pool.helpers += 1,
            Err(_) if pool.helpers == 0 => {
                let job = pool.jobs.pop_back();
                drop(pool);
                job.into_iter().for_each(|job| job());
                return;
            }
            Err(_) => {}
        }
    }
    drop(pool);
    WORK.notify_one();
}

/// A helper's life, which ends with the process.
fn help() {
    let mut pool = lock(&POOL);
    loop {
        match pool.jobs.pop_front() {
            Some(job) => {
                drop(pool);
                job();
                pool = lock(&POOL);
            }
            None => {
                pool.idle += 1;
                pool = WORK.wait(pool).unwrap_or_else(std::sync::PoisonError::into_inner);
                pool.idle -= 1;
            }
        }
    }
}

/// Calls `f` on the stack of the kthread, for what needs more than a uthread has. It blocks the kthread as long as it
/// takes.
pub(crate) fn on_kthread_stack<R>(f: impl FnOnce() -> R) -> R {
    if !in_uthread() {
        return f();
    }
    let mut result = None;
    park_current(|waiter| {
        result = Some(catch_unwind(AssertUnwindSafe(f)));
        waiter.ready();
    });
    match result {
        Some(Ok(result)) => result,
        Some(Err(panic)) => resume_unwind(panic),
        None => unreachable!("the call above leaves a result"),
    }
}
