//! Which events are wanted, and which programs tell them.

use libbpf_rs::OpenObject;
use libbpf_rs::btf::{Btf, types::Typedef};

use crate::ObserveError;
use crate::bpf::object::{self, refused};

/// Kinds of events. Programs that no wanted kind needs are not loaded and cost nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Events {
    /// [`What::Switch`](quell_model::What::Switch).
    pub switches: bool,
    /// `Waking`, and `Woken` of new threads.
    pub wakes: bool,
    /// `Woken`: when a woken thread is put into a queue.
    pub woken: bool,
    /// `Migrate`.
    pub moves: bool,
    /// `Fork`, `Exec` and `Exit`.
    pub lives: bool,
    /// `Queue`.
    pub queues: bool,
    /// `Load`: about as many again as all others.
    pub load: bool,
    /// `Softirq` of the load balancer, and `Considered`.
    pub balance: bool,
    /// `Allowed`.
    pub allowed: bool,
    /// `Softirq` of all vectors.
    pub softirqs: bool,
    /// `Interrupt`.
    pub interrupts: bool,
}

impl Events {
    /// All that there are.
    pub const ALL: Events = Events {
        switches: true,
        wakes: true,
        woken: true,
        moves: true,
        lives: true,
        queues: true,
        load: true,
        balance: true,
        allowed: true,
        softirqs: true,
        interrupts: true,
    };

    /// What `quell why` needs to say why a thread waited.
    pub const WHY: Events = Events { woken: true, ..Events::WHY_LIVE };

    /// The same live, where nothing else reads the events.
    pub const WHY_LIVE: Events =
        Events { switches: true, wakes: true, softirqs: true, interrupts: true, ..Events::NONE };

    /// None but keyframes and losses.
    pub const NONE: Events = Events {
        switches: false,
        wakes: false,
        woken: false,
        moves: false,
        lives: false,
        queues: false,
        load: false,
        balance: false,
        allowed: false,
        softirqs: false,
        interrupts: false,
    };

    /// `QUELL_TELL_*`.
    pub(super) fn tell(&self) -> u32 {
        let kinds = [
            self.switches,
            self.wakes,
            self.lives,
            self.queues,
            self.load,
            self.allowed,
            self.softirqs,
            self.finds_unseen(),
            self.woken,
        ];
        kinds.into_iter().enumerate().map(|(bit, wanted)| u32::from(wanted) << bit).sum()
    }

    /// Whether switches that no tracepoint showed are looked for: with queue sizes, which would contradict what is
    /// shown. Otherwise readers find them by the thread that leaves next.
    fn finds_unseen(&self) -> bool {
        self.switches && (self.queues || self.load)
    }

    /// Whether the program at this tracepoint is needed.
    fn need(&self, hook: &str) -> bool {
        match hook {
            "sched_switch" => self.switches || self.queues || self.load || self.allowed,
            "sched_waking" => self.wakes || self.allowed,
            "sched_wakeup" => self.woken || self.queues || self.load,
            "sched_wakeup_new" => self.wakes,
            "sched_migrate_task" => self.moves,
            "sched_process_fork" => self.lives || self.allowed,
            "sched_process_exec" | "sched_process_exit" => self.lives,
            "sched_update_nr_running_tp" => self.queues || self.load,
            // A thread that keeps its core without a switch is seen by its ticks.
            "pelt_cfs_tp" => self.load || self.finds_unseen(),
            "softirq_entry" | "softirq_exit" => self.softirqs || self.balance,
            "irq_handler_entry" | "irq_handler_exit" => self.interrupts,
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
                let is_partial = hook.starts_with("softirq") && !events.softirqs;
                let only = if is_partial { " (load balancer)" } else { "" };
                hooks.attached.push(format!("{hook}{only}"));
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
