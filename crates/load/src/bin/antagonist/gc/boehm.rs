//! The Boehm collector (libgc 8) behind a safe interface.
//!
//! The collector finds pointers in the stacks of threads that it knows (here the main thread alone),
//! in static data and in its own objects, not in Rust's heap. So references into collected memory
//! are handed out only for the time of a call, while its owner stands in a stack frame of that
//! thread; long-lived objects hang on an object that is never collected.

use std::ffi::{c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Mutex;

use anyhow::Context;
use quell_load::{now, thread_cpu_time};
use quell_model::Nanos;

// libgc is linked by build.rs; declarations from gc.h of version 8.
unsafe extern "C" {
    fn GC_init();
    fn GC_gcollect();
    fn GC_disable();
    fn GC_enable();
    fn GC_set_markers_count(count: c_uint);
    fn GC_set_free_space_divisor(divisor: usize);
    fn GC_set_on_collection_event(callback: extern "C" fn(c_int));
    fn GC_get_heap_size() -> usize;
    fn GC_malloc(bytes: usize) -> *mut c_void;
    fn GC_malloc_atomic(bytes: usize) -> *mut c_void;
    fn GC_malloc_uncollectable(bytes: usize) -> *mut c_void;
}

/// The collector lets the heap fill by its size over this between two collections (3 by default): with
/// as long between pauses as in them, a second of CPU time shows several whole cycles.
const FREE_SPACE_DIVISOR: usize = 8;
/// `GC_EVENT_START` and `GC_EVENT_END` of gc.h: the mutator stands still in between, since it is the
/// one that collects.
const EVENT_START: c_int = 0;
const EVENT_END: c_int = 5;

/// How long one collection stopped the program.
#[derive(Clone, Copy, Debug)]
pub struct Pause {
    /// Wall time.
    pub wall: Nanos,
    /// CPU time of the collecting thread.
    pub cpu: Nanos,
}

struct Collections {
    /// Clock and CPU time at the start of the one under way.
    begun: Option<(Nanos, Nanos)>,
    /// Those that ended since they were last asked for.
    pauses: Vec<Pause>,
}

static COLLECTIONS: Mutex<Collections> =
    Mutex::new(Collections { begun: None, pauses: Vec::new() });

/// Called by the collector on the collecting thread. Uses Rust's heap, which the collector does not
/// replace, so allocating here cannot start a collection.
extern "C" fn on_event(event: c_int) {
    let Ok(mut collections) = COLLECTIONS.lock() else { return };
    match event {
        EVENT_START => collections.begun = Some((now(), thread_cpu_time())),
        EVENT_END => {
            if let Some((wall, cpu)) = collections.begun.take() {
                let (wall, cpu) = (now().since(wall), thread_cpu_time().since(cpu));
                collections.pauses.push(Pause { wall, cpu });
            }
        }
        _ => {}
    }
}

/// The collected heap. Stays on the thread that made it.
pub struct Heap {
    not_send: PhantomData<*mut ()>,
}

impl Heap {
    /// Starts the collector; must be called on the main thread, whose stack it scans.
    pub fn start(markers: u32) -> anyhow::Result<Heap> {
        let main = rustix::process::getpid() == rustix::thread::gettid();
        anyhow::ensure!(main, "the collector must be started on the main thread");
        // SAFETY: the functions are called in the order that gc.h asks for, on the main thread, before
        // any allocation; the callback has the declared type and never unwinds.
        unsafe {
            GC_set_markers_count(markers.max(1));
            GC_init();
            GC_set_free_space_divisor(FREE_SPACE_DIVISOR);
            GC_set_on_collection_event(on_event);
        }
        Ok(Heap { not_send: PhantomData })
    }

    /// Collects now.
    pub fn collect(&self) {
        // SAFETY: the collector is started, and this is its only mutator.
        unsafe { GC_gcollect() }
    }

    /// Size of the heap in bytes.
    pub fn bytes(&self) -> usize {
        // SAFETY: the collector is started, and this is its only mutator.
        unsafe { GC_get_heap_size() }
    }

    /// How many pauses wait to be taken.
    pub fn pauses(&self) -> usize {
        COLLECTIONS.lock().map_or(0, |all| all.pauses.len())
    }

    /// The pauses since the last call.
    pub fn take_pauses(&self) -> Vec<Pause> {
        COLLECTIONS.lock().map(|mut all| std::mem::take(&mut all.pauses)).unwrap_or_default()
    }

    /// Runs `f` on `rows` collected arrays of `columns` zeroes each, which are garbage afterwards.
    pub fn with_rows<R>(
        &self,
        rows: usize,
        columns: usize,
        f: impl FnOnce(&mut Rows) -> R,
    ) -> anyhow::Result<R> {
        // SAFETY: the collector is started; the size is not zero, and a null is refused.
        let table = unsafe { GC_malloc(rows.max(1) * size_of::<*mut f64>()) }.cast::<*mut f64>();
        let table = NonNull::new(table).context("the collected heap is out of memory")?;
        for row in 0..rows {
            // SAFETY: as above. The row holds no pointers, as the atomic kind promises.
            let cells =
                unsafe { GC_malloc_atomic(columns.max(1) * size_of::<f64>()) }.cast::<f64>();
            anyhow::ensure!(!cells.is_null(), "the collected heap is out of memory");
            // SAFETY: `cells` has room for `columns` numbers and is not cleared by the collector;
            // `table` has room for `rows` pointers, is reachable from this frame, and keeps the row.
            unsafe {
                cells.write_bytes(0, columns);
                table.add(row).write(cells);
            }
        }
        let mut view = Rows { table, rows, columns };
        let result = f(&mut view);
        // The table stays in this frame, where the collector finds it, until `f` is done.
        std::hint::black_box(&mut view);
        Ok(result)
    }
}

/// Collected arrays of numbers, all of one length.
pub struct Rows {
    table: NonNull<*mut f64>,
    rows: usize,
    columns: usize,
}

impl Rows {
    /// The array with this index.
    ///
    /// # Panics
    /// Beyond the last.
    pub fn row(&mut self, index: usize) -> &mut [f64] {
        assert!(index < self.rows, "row {index} of {}", self.rows);
        // SAFETY: the table holds `rows` pointers to arrays of `columns` initialised numbers each,
        // alive while `self` is (see `with_rows`); the borrow of `self` keeps references apart.
        unsafe { std::slice::from_raw_parts_mut(*self.table.as_ptr().add(index), self.columns) }
    }
}

/// A node of the live data: every word may be a pointer to the collector, one is.
#[repr(C)]
struct Node {
    next: *mut Node,
    value: [u64; 3],
}

/// Live data: chains of nodes that hang on a table that is never collected.
pub struct Live<'heap> {
    table: NonNull<*mut Node>,
    chains: usize,
    chains_max: usize,
    heap: PhantomData<&'heap Heap>,
}

impl<'heap> Live<'heap> {
    /// Room for so many chains.
    pub fn new(_heap: &'heap Heap, chains_max: usize) -> anyhow::Result<Live<'heap>> {
        // SAFETY: the collector is started; the memory is cleared by it, and a null is refused.
        let table = unsafe { GC_malloc_uncollectable(chains_max.max(1) * size_of::<*mut Node>()) };
        let table = NonNull::new(table.cast()).context("the collected heap is out of memory")?;
        Ok(Live { table, chains: 0, chains_max, heap: PhantomData })
    }

    /// Adds chains of so many nodes without collecting meanwhile; `false` where no room is left.
    pub fn grow(&mut self, chains: usize, nodes: usize) -> anyhow::Result<bool> {
        // SAFETY: the collector is started; each disable is matched by the enable below.
        unsafe { GC_disable() }
        let grown = (0..chains).try_fold(true, |all, _| Ok(all & self.add_chain(nodes)?));
        // SAFETY: matches the disable above.
        unsafe { GC_enable() }
        grown
    }

    /// Chains so far.
    pub fn chains(&self) -> usize {
        self.chains
    }

    fn add_chain(&mut self, nodes: usize) -> anyhow::Result<bool> {
        if self.chains == self.chains_max {
            return Ok(false);
        }
        // SAFETY: the table has room for `chains_max` pointers, and the index is below.
        let head = unsafe { self.table.as_ptr().add(self.chains) };
        for index in 0..nodes {
            // SAFETY: the collector is started; a null is refused before use.
            let node = unsafe { GC_malloc(size_of::<Node>()) }.cast::<Node>();
            anyhow::ensure!(!node.is_null(), "the collected heap is out of memory");
            // SAFETY: `node` has room for a Node; `head` is valid and, on the table, always reachable:
            // the chain so far hangs on it while the next node is allocated.
            unsafe {
                node.write(Node { next: *head, value: [index as u64; 3] });
                *head = node;
            }
        }
        self.chains += 1;
        Ok(true)
    }
}
