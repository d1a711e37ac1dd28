//! Green threads for services that share a host: blocking code, work stealing, cores that come and go.
//!
//! A *kthread* is a kernel thread of the runtime, one a core at most; a *uthread* is a green thread. A uthread is *ready*,
//! *running* or *parked*. Alone, the runtime uses the cores that it may; under the daemon it uses those that it is granted.
//!
//! Caladan, OSDI'20, sections 4 and 6, and its runtime.
//!
//! # What must stay on one thread
//!
//! A uthread moves between kernel threads, at *safe points*: any call of this library may be one. What is on its stack moves with
//! it. That is sound for what it made and has alone, a `Rc` of its own included, and not for what other code of the same kernel thread
//! shares or finds again by its thread:
//!
//! - an `Rc` that a `std::thread_local!` has a clone of, or a reference into such a value;
//! - a guard of `std::sync::Mutex` or `RwLock`, which is to be unlocked by the thread that locked it;
//! - a handle that C binds to a thread: of MPI, of OpenGL, of a Python interpreter.
//!
//! To hold one of these across a safe point is undefined behaviour. **The compiler cannot check it**: that a uthread's closure and
//! result are `Send` says what goes in and comes out; a future's state would be checked, but a stack is not a future. This is a known
//! limit of green threads with stacks in Rust (`may` has it, too). Make such values and drop them between two calls of this library,
//! use [`uthread_local!`] and [`sync`], or leave such work to threads of std.

mod clock;
pub mod fs;
mod io;
mod kthread;
mod link;
pub mod load;
mod local;
pub mod net;
mod overflow;
mod park;
pub mod preempt;
mod race;
pub mod request;
mod runtime;
mod scope;
mod siblings;
mod stack;
mod stats;
pub mod sync;
mod task;
pub mod thread;
pub mod time;
mod token;
#[cfg(test)]
mod with_threads;
mod word;

pub use local::LocalKey;
pub use quell_model::{Class, CoreId, CoreSet, Nanos};
pub use runtime::{BuildError, Builder, Daemon, Handle, Io, Runtime};
pub use stats::{KthreadStats, Stats};
pub use thread::{JoinHandle, Uthread, current, scope, sleep, spawn, yield_now};
