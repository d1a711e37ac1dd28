//! Pages by which an application hints what it does: per thread when the request in service began, and what
//! waits in queues of the application's own, neither of which a kernel can see.
//!
//! An application creates a small file in a tmpfs, maps it, and stores a few words in it for each request
//! ([`Page`], or `include/quell_hints.h` for C and C++). The daemon reads the file now and then ([`Reader`]).
//! Hints steer preferences alone: a page that lies harms nobody but its own task.
//!
//! Who writes owns the file and may cut it short at any time. So the reader never maps it (an access past the end
//! would be a SIGBUS in the scheduler): it copies the file with `pread`, which merely comes back short.
//! What is read is checked word by word ([`layout`]).

pub mod layout;
mod map;
mod page;
mod reader;
pub mod runtime;

pub use layout::{Hint, Malformed, SLOTS_MAX};
pub use page::{Page, Slot};
pub use reader::{HintsError, Identity, Reader};

/// Where launched tasks find the path of their page.
pub const PATH_VARIABLE: &str = "QUELL_HINTS";
