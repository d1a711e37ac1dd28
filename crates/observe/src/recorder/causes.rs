//! Who moves threads: the stacks of `sched_migrate_task`, explained with `/proc/kallsyms`.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use quell_model::MoveCause;

use crate::layout::Field as _;

/// Functions that name a cause when they are on the stack, the innermost first. Load balancing was renamed in
/// Linux 6.10. `pick_next_task_fair` and `balance_fair` are there for compilers that inline the balancer of a core
/// about to idle.
const FUNCTIONS: [(&str, MoveCause); 31] = [
    ("try_to_wake_up", MoveCause::Wakeup),
    ("wake_up_new_task", MoveCause::Fork),
    ("sched_exec", MoveCause::Exec),
    ("sched_balance_newidle", MoveCause::NewIdle),
    ("newidle_balance", MoveCause::NewIdle),
    ("pick_next_task_fair", MoveCause::NewIdle),
    ("balance_fair", MoveCause::NewIdle),
    ("sched_balance_domains", MoveCause::Periodic),
    ("rebalance_domains", MoveCause::Periodic),
    ("_nohz_idle_balance", MoveCause::Periodic),
    ("sched_balance_softirq", MoveCause::Periodic),
    ("run_rebalance_domains", MoveCause::Periodic),
    ("active_load_balance_cpu_stop", MoveCause::Active),
    ("__set_cpus_allowed_ptr", MoveCause::Affinity),
    ("__set_cpus_allowed_ptr_locked", MoveCause::Affinity),
    ("set_cpus_allowed_ptr", MoveCause::Affinity),
    ("migration_cpu_stop", MoveCause::Affinity),
    ("task_numa_migrate", MoveCause::Numa),
    ("migrate_swap", MoveCause::Numa),
    ("migrate_swap_stop", MoveCause::Numa),
    ("migrate_task_to", MoveCause::Numa),
    ("push_rt_task", MoveCause::Realtime),
    ("push_rt_tasks", MoveCause::Realtime),
    ("pull_rt_task", MoveCause::Realtime),
    ("push_dl_task", MoveCause::Realtime),
    ("push_dl_tasks", MoveCause::Realtime),
    ("pull_dl_task", MoveCause::Realtime),
    ("push_cpu_stop", MoveCause::Realtime),
    ("dl_task_timer", MoveCause::Realtime),
    ("__balance_push_cpu_stop", MoveCause::Hotplug),
    ("sched_cpu_dying", MoveCause::Hotplug),
];

/// A function in the kernel's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Function {
    from: u64,
    to: u64,
    cause: MoveCause,
}

/// Explains stacks; each is looked up once.
pub(super) struct Causes {
    functions: Vec<Function>,
    stacks: MapHandle,
    known: HashMap<i32, MoveCause>,
}

impl Causes {
    /// Reads the kernel's symbols. Where they are hidden (`kernel.kptr_restrict`), all is
    /// [`MoveCause::Unknown`].
    pub fn new(stacks: MapHandle) -> io::Result<Causes> {
        let functions = functions(BufReader::new(File::open("/proc/kallsyms")?))?;
        Ok(Causes { functions, stacks, known: HashMap::new() })
    }

    /// Whether moves can be explained.
    pub fn explains(&self) -> bool {
        !self.functions.is_empty()
    }

    /// Who is behind a stack of the map; a negative number says why there is none.
    pub fn of(&mut self, stack: i32) -> MoveCause {
        if stack < 0 {
            return MoveCause::Unknown;
        }
        if let Some(cause) = self.known.get(&stack) {
            return *cause;
        }
        let Ok(Some(frames)) = self.stacks.lookup(&stack.to_ne_bytes(), MapFlags::ANY) else {
            return MoveCause::Unknown;
        };
        let cause = cause(&self.functions, frames.chunks_exact(8).map(u64::from_bytes));
        self.known.insert(stack, cause);
        cause
    }
}

fn cause(functions: &[Function], frames: impl Iterator<Item = u64>) -> MoveCause {
    let mut named = frames.take_while(|frame| *frame != 0).filter_map(|frame| {
        // A return address: it may lie right behind a function that ends with the call.
        let last = functions.partition_point(|function| function.from < frame);
        let function = functions.get(last.checked_sub(1)?)?;
        (frame <= function.to).then_some(function.cause)
    });
    named.next().unwrap_or(MoveCause::Unknown)
}

/// The functions that name a cause, by address, from the text of `/proc/kallsyms`.
fn functions(kallsyms: impl BufRead) -> io::Result<Vec<Function>> {
    let mut starts = Vec::new();
    for line in kallsyms.split(b'\n') {
        starts.extend(symbol(&String::from_utf8_lossy(&line?)));
    }
    starts.sort_unstable_by_key(|(start, _)| *start);
    // Aliases share an address.
    starts.dedup_by(|next, kept| {
        let same = next.0 == kept.0;
        kept.1 = kept.1.or(if same { next.1 } else { None });
        same
    });
    let pairs = starts.iter().zip(starts.iter().skip(1));
    let found =
        pairs.filter_map(|(&(from, cause), &(to, _))| Some(Function { from, to, cause: cause? }));
    Ok(found.collect())
}

/// The address of a symbol of the kernel's text, and the cause that it names.
fn symbol(line: &str) -> Option<(u64, Option<MoveCause>)> {
    let mut fields = line.split_ascii_whitespace();
    let address = u64::from_str_radix(fields.next()?, 16).ok().filter(|address| *address != 0)?;
    if !matches!(fields.next()?, "t" | "T" | "w" | "W") {
        return None;
    }
    // Compilers split functions: `try_to_wake_up.part.0`.
    let name = fields.next()?.split('.').next()?;
    let named = FUNCTIONS.iter().find(|(function, _)| *function == name);
    Some((address, named.map(|(_, cause)| *cause)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KALLSYMS: &str = "\
ffffffff81000000 T _text
ffffffff81000100 T set_task_cpu
ffffffff81000200 t try_to_wake_up.part.0
ffffffff81000300 T wake_up_process
ffffffff81000400 t newidle_balance
ffffffff81000500 t __schedule
ffffffff81000600 D some_data
ffffffff81000700 t migration_cpu_stop
ffffffff81000800 T last [module]
";

    fn explained(frames: &[u64]) -> MoveCause {
        let functions = functions(KALLSYMS.as_bytes()).unwrap();
        cause(&functions, frames.iter().map(|frame| 0xffff_ffff_8100_0000 + frame).chain([0, 1]))
    }

    #[test]
    fn the_innermost_known_function_names_the_cause() {
        assert_eq!(explained(&[0x150, 0x250, 0x350, 0x450]), MoveCause::Wakeup);
        assert_eq!(explained(&[0x150, 0x450, 0x550, 0x250]), MoveCause::NewIdle);
        assert_eq!(explained(&[0x150, 0x750]), MoveCause::Affinity);
    }

    #[test]
    fn a_stack_that_says_nothing_has_no_cause() {
        assert_eq!(explained(&[0x150, 0x350, 0x550, 0x650]), MoveCause::Unknown);
        assert_eq!(explained(&[]), MoveCause::Unknown);
        assert_eq!(cause(&[], [5].into_iter()), MoveCause::Unknown);
    }

    #[test]
    fn a_return_address_behind_its_function_belongs_to_it() {
        assert_eq!(explained(&[0x300]), MoveCause::Wakeup);
        assert_eq!(explained(&[0x200]), MoveCause::Unknown);
    }

    #[test]
    fn hidden_symbols_leave_every_move_unknown() {
        let hidden = "0000000000000000 T try_to_wake_up\n0000000000000000 T _text\n";
        assert_eq!(functions(hidden.as_bytes()).unwrap(), []);
    }

    #[test]
    fn this_kernel_has_the_functions_that_wake_threads_and_set_affinities() {
        let file = BufReader::new(File::open("/proc/kallsyms").unwrap());
        let functions = functions(file).unwrap();
        for wanted in [MoveCause::Wakeup, MoveCause::Periodic, MoveCause::Affinity] {
            assert!(functions.iter().any(|function| function.cause == wanted), "{wanted:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = functions(text.as_slice()).unwrap();
        }
    }
}
