//! The /proc observer.
