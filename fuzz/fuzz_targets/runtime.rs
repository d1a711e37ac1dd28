//! The memory that a runtime shares: whatever it holds, what is copied from it is bounded by the time of the copy.

#![no_main]

use libfuzzer_sys::fuzz_target;
use quell_model::Nanos;
use quell_shm::runtime::{Header, KTHREADS_MAX, Kthread};

/// A header and a kernel thread, as the mapping has them.
#[repr(C, align(256))]
struct Memory([u8; 512]);

fuzz_target!(|input: (u64, &[u8])| {
    let (now, bytes) = (Nanos(input.0), input.1);
    let mut memory = Memory([0; 512]);
    let length = bytes.len().min(512);
    memory.0[..length].copy_from_slice(&bytes[..length]);
    let start = memory.0.as_ptr();
    // SAFETY: both lie within `memory`, at multiples of their alignment (256), and are made of atomic integers,
    // for which any bits are a value; nobody writes meanwhile.
    let (header, kthread) = unsafe { (&*start.cast::<Header>(), &*start.add(256).cast::<Kthread>()) };
    assert!(header.kthreads().is_none_or(|kthreads| (1..=KTHREADS_MAX).contains(&kthreads)));
    let told = (header.daemon(), header.told.queueing_delay(), header.told.load_millicores());
    let _ = (told, header.told.cores(), header.told.updates());
    let work = kthread.work.read(now);
    let ages = [work.ready_age, work.timer_age, work.io_age, work.uthread_age];
    assert!(ages.iter().all(|age| *age <= now));
    assert!(work.delay() >= work.ready_age.max(work.timer_age).max(work.io_age));
    assert!(work.request_start.is_none_or(|start| start <= now));
    if let Some((generation, _)) = kthread.grant.current() {
        assert!(generation > 0);
        let _ = (kthread.grant.is_revoked(generation), kthread.grant.is_quantum_over(now));
    }
});
