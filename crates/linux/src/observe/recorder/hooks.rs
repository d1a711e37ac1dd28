//! Which events are wanted, and which programs tell them.

use libbpf_rs::OpenObject;
use libbpf_rs::btf::{Btf, types::Typedef};

use crate::observe::ObserveError;
use crate::observe::bpf::object::{self, refused};

/// Kinds of events. Programs that no wanted kind needs are not loaded and cost nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Events {
    /// [`What::Switch`](quell_model::What::Switch).
    pub switches: bool,
    /// `Waking` and `Woken`.
    pub wakes: bool,
    /// `Migrate`.
    pub moves: bool,
    /// `Fork`, `Exec` and `Exit`.
    pub lives: bool,
    /// `Queue`.
    pub queues: bool,
    /// `Load`: about as many again as all others.
    pub load: bool,
    /// `Balance` and `Considered`.
    pub balance: bool,
    /// `Allowed`.
    pub allowed: bool,
}

impl Events {
    /// All that there are.
    pub const ALL: Events = Events {
        switches: true,
        wakes: true,
        moves: true,
        lives: true,
        queues: true,
        load: true,
        balance: true,
        allowed: true,
    };

    /// None but keyframes and losses.
    pub const NONE: Events = Events {
        switches: false,
        wakes: false,
        moves: false,
        lives: false,
        queues: false,
        load: false,
        balance: false,
        allowed: false,
    };

    /// `QUELL_TELL_*`.
    pub(super) fn tell(&self) -> u32 {
        let kinds = [self.switches, self.wakes, self.lives, self.queues, self.load, self.allowed];
        kinds.into_iter().enumerate().map(|(bit, wanted)| u32::from(wanted) << bit).sum()
    }

    /// Whether the program at this tracepoint is needed.
    fn need(&self, hook: &str) -> bool {
        match hook {
            "sched_switch" => self.switches || self.queues || self.load || self.allowed,
            "sched_waking" => self.wakes || self.allowed,
            "sched_wakeup" => self.wakes || self.queues || self.load,
            "sched_wakeup_new" => self.wakes,
            "sched_migrate_task" => self.moves,
            "sched_process_fork" => self.lives || self.allowed,
            "sched_process_exec" | "sched_process_exit" => self.lives,
            "sched_update_nr_running_tp" => self.queues || self.load,
            // A thread that keeps its core without a switch is seen by its ticks.
            "pelt_cfs_tp" => self.load || self.switches,
            "softirq_entry" | "softirq_exit" => self.balance,
            "cpuhp_exit" => self.switches || self.queues || self.load,
            _ => false,
        }
    }
}

/// The tracepoints that are needed.
pub(super) struct Hooks {
    /// Those that the kernel has.
    pub attached: Vec<String>,
    /// What cannot be told for want of the others, in words.
    pub absent: Vec<String>,
}

impl Hooks {
    /// Leaves out the programs that are not needed, or whose tracepoints this kernel does not have.
    pub fn choose(open: &mut OpenObject, events: &Events) -> Result<Hooks, ObserveError> {
        let kernel =
            Btf::from_vmlinux().map_err(|error| refused("reading the kernel's BTF", &error))?;
        let mut hooks = Hooks { attached: Vec::new(), absent: Vec::new() };
        for mut program in open.progs_mut() {
            let section = program.section().to_string_lossy().into_owned();
            let Some(hook) = section.strip_prefix("tp_btf/") else { continue };
            let wanted = events.need(hook);
            let exists = wanted
                && kernel.type_by_name::<Typedef<'_>>(&format!("btf_trace_{hook}")).is_some();
            program.set_autoload(exists);
            if exists {
                hooks.attached.push(hook.to_owned());
            } else if wanted {
                hooks
                    .absent
                    .push(format!("what the tracepoint {hook} tells: this kernel has none"));
            }
        }
        if hooks.attached.is_empty() && *events != Events::NONE {
            let what = "this kernel has none of the scheduler's tracepoints";
            return Err(object::broken("/sys/kernel/btf/vmlinux", what.to_owned()));
        }
        Ok(hooks)
    }
}
