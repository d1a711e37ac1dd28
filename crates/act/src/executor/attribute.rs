//! The two attributes of threads, behind one interface.

use std::io;

use quell_model::CoreSet;

use super::threads::{Ghost, Managed, Tracked};
use crate::host::Host;
use crate::journal::value::{Cores, Value};
use crate::{Policy, SchedAttr, Subject};
use quell_os::{ThreadRef, Tid};

/// An attribute of a thread that the executor sets.
pub(super) trait Attribute: Copy {
    /// What it is, for people and the journal.
    fn subject(thread: ThreadRef) -> Subject;
    /// Reads it with one system call.
    fn read(tid: Tid) -> io::Result<Self>;
    /// Sets it.
    fn write(&self, tid: Tid) -> io::Result<()>;
    /// Whether two values have the same effect.
    fn same(&self, other: &Self) -> bool;
    /// Whether a child of a thread at `self` may show `seen`.
    fn may_pass_on(&self, seen: &Self) -> bool {
        self.same(seen)
    }
    /// Whether `self`, once written, may read as `seen`: told from /proc, only where [`Attribute::same`] says no.
    fn may_show(&self, seen: &Self, thread: &ThreadRef, host: &mut Host) -> bool;
    /// Reads it as it has to be given back.
    fn original(thread: &ThreadRef, host: &mut Host) -> io::Result<Value>;
    /// As journalled.
    fn value(&self) -> Value;
    /// From the journal.
    fn from_value(value: &Value) -> Option<Self>;
    /// Where it is kept.
    fn place(managed: &mut Managed) -> &mut Option<Box<Tracked<Self>>>;
    /// Where it is kept.
    fn tracked(managed: &Managed) -> Option<&Tracked<Self>>;
    /// What a process left.
    fn of_ghost(ghost: &Ghost) -> Option<&Tracked<Self>>;
}

impl Attribute for SchedAttr {
    fn subject(thread: ThreadRef) -> Subject {
        Subject::Sched(thread)
    }

    fn read(tid: Tid) -> io::Result<Self> {
        quell_os::sched::attr(tid)
    }

    fn write(&self, tid: Tid) -> io::Result<()> {
        crate::sched::set_attr(tid, self)
    }

    fn same(&self, other: &Self) -> bool {
        self.same_effect(other)
    }

    /// `sched_fork` in `kernel/sched/core.c`: SCHED_RESET_ON_FORK turns real-time policies into SCHED_OTHER at nice 0.
    fn may_pass_on(&self, seen: &Self) -> bool {
        let reset = SchedAttr { policy: Policy::Other, priority: 0, nice: 0, ..*seen };
        self.same(seen) || (self.reset_on_fork && reset.same_effect(seen))
    }

    fn may_show(&self, _seen: &Self, _thread: &ThreadRef, _host: &mut Host) -> bool {
        false
    }

    fn original(thread: &ThreadRef, host: &mut Host) -> io::Result<Value> {
        host.sched_original(thread.tid).map(Value::Sched)
    }

    fn value(&self) -> Value {
        Value::Sched(*self)
    }

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Sched(attr) => Some(*attr),
            _ => None,
        }
    }

    fn place(managed: &mut Managed) -> &mut Option<Box<Tracked<Self>>> {
        &mut managed.sched
    }

    fn tracked(managed: &Managed) -> Option<&Tracked<Self>> {
        managed.sched.as_deref()
    }

    fn of_ghost(ghost: &Ghost) -> Option<&Tracked<Self>> {
        ghost.sched.as_deref()
    }
}

impl Attribute for CoreSet {
    fn subject(thread: ThreadRef) -> Subject {
        Subject::Affinity(thread)
    }

    fn read(tid: Tid) -> io::Result<Self> {
        quell_os::sched::affinity(tid)
    }

    fn write(&self, tid: Tid) -> io::Result<()> {
        crate::sched::set_affinity(tid, self)
    }

    fn same(&self, other: &Self) -> bool {
        self == other
    }

    fn may_show(&self, _seen: &Self, thread: &ThreadRef, host: &mut Host) -> bool {
        // The quick read leaves out cores that are offline, and the kernel those outside the cpuset.
        host.refresh();
        crate::host::allowed(thread).is_ok_and(|full| host.shows(thread, self, &full))
    }

    fn original(thread: &ThreadRef, host: &mut Host) -> io::Result<Value> {
        host.affinity_original(thread).map(Value::Cores)
    }

    fn value(&self) -> Value {
        Value::Cores(Cores::exactly(*self))
    }

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Cores(cores) => Some(cores.set),
            _ => None,
        }
    }

    fn place(managed: &mut Managed) -> &mut Option<Box<Tracked<Self>>> {
        &mut managed.cores
    }

    fn tracked(managed: &Managed) -> Option<&Tracked<Self>> {
        managed.cores.as_deref()
    }

    fn of_ghost(ghost: &Ghost) -> Option<&Tracked<Self>> {
        ghost.cores.as_deref()
    }
}
