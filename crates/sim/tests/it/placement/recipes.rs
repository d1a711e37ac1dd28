//! Recipes of CPU hogs: which there are, the file that virtual machines run them from, and each as a scenario.

use std::fmt::Write;

/// Threads that compute without end and are alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Hogs {
    pub count: u64,
    /// `None`: SCHED_IDLE.
    pub nice: Option<i8>,
    /// The cgroup's name and its `cpu.weight`; `None`: the root.
    pub cgroup: Option<(&'static str, u64)>,
    /// The cores that they may use, ascending.
    pub cores: Vec<u64>,
    /// The core in whose queue all begin.
    pub start: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    pub name: String,
    pub machine: &'static str,
    pub hogs: Vec<Hogs>,
}

/// All machines have 8 cores. Numbers of siblings are adjacent, as in the virtual machines.
pub const MACHINES: [&str; 3] = ["siblings", "nodes", "ring"];
pub const CORES: u64 = 8;

/// What a recipe is about.
const KINDS: [&str; 5] = ["count", "nice", "cgroup", "mask", "mixed"];

/// SplitMix64, so that recipes are the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn within(&mut self, first: u64, last: u64) -> u64 {
        first + self.next() % (last - first + 1)
    }

    fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.within(0, of.len() as u64 - 1) as usize]
    }

    /// One to five cores.
    fn mask(&mut self) -> Vec<u64> {
        let size = self.within(1, 5) as usize;
        let mut cores: Vec<u64> = (0..CORES).collect();
        while cores.len() > size {
            cores.remove(self.within(0, cores.len() as u64 - 1) as usize);
        }
        cores
    }

    fn hogs(&mut self, first: u64, last: u64) -> Hogs {
        Hogs {
            count: self.within(first, last),
            nice: Some(0),
            cgroup: None,
            cores: (0..CORES).collect(),
            start: self.within(0, CORES - 1),
        }
    }

    fn masked(&mut self, hogs: Hogs) -> Hogs {
        let cores = self.mask();
        Hogs { start: self.one_of(&cores), cores, ..hogs }
    }
}

/// The 40 recipes.
pub fn recipes() -> Vec<Recipe> {
    (0..40).map(recipe).collect()
}

fn recipe(nth: u64) -> Recipe {
    let mut random = Random(nth);
    let kind = KINDS[(nth % 5) as usize];
    let hogs = match kind {
        "count" => vec![random.hogs(2, 20)],
        "nice" => {
            let heavy = random.hogs(1, 3);
            let light = random.hogs(4, 12);
            vec![
                Hogs { nice: Some(random.one_of(&[-20, -10, -5])), ..heavy },
                Hogs {
                    nice: random.one_of(&[Some(0), Some(5), Some(10), Some(19), None]),
                    ..light
                },
            ]
        }
        "cgroup" => {
            let (few, many) = (random.hogs(1, 3), random.hogs(4, 12));
            vec![
                Hogs { cgroup: Some(("few", random.one_of(&[50, 100, 400, 1_000]))), ..few },
                Hogs { cgroup: Some(("many", random.one_of(&[20, 100, 300]))), ..many },
            ]
        }
        "mask" => {
            let bound = random.hogs(2, 8);
            vec![random.masked(bound), random.hogs(2, 8)]
        }
        _ => {
            let bound = random.hogs(1, 6);
            let bound = random.masked(bound);
            let (nice, group) = (random.hogs(1, 6), random.hogs(1, 6));
            vec![
                bound,
                Hogs { nice: random.one_of(&[Some(-5), Some(5), Some(19), None]), ..nice },
                Hogs { cgroup: Some(("group", random.one_of(&[50, 100, 400]))), ..group },
            ]
        }
    };
    let machine = MACHINES[(nth / 5 % 3) as usize];
    Recipe { name: format!("{:02}-{kind}", nth + 1), machine, hogs }
}

fn list(cores: &[u64]) -> String {
    let words: Vec<String> = cores.iter().map(u64::to_string).collect();
    words.join(",")
}

/// The file that `scripts/vm/placement.sh` has virtual machines run.
pub fn file(recipes: &[Recipe]) -> String {
    let mut text = String::new();
    for Recipe { name, machine, hogs } in recipes {
        let _ = writeln!(text, "recipe {name} {machine}");
        for Hogs { count, nice, cgroup, cores, start } in hogs {
            let nice = nice.map_or("idle".to_owned(), |nice| nice.to_string());
            let cgroup = cgroup.map_or("-".to_owned(), |(name, weight)| format!("{name}={weight}"));
            let _ = writeln!(text, "hogs {count} {nice} {cgroup} {} {start}", list(cores));
        }
    }
    text
}

impl Recipe {
    /// The recipe as a scenario under the model of a kernel: for how many milliseconds hogs are bound, settle, and are sampled.
    /// Threads of the kernel wake now and then, so that runs differ.
    pub fn scenario(&self, series: &str, seed: u64, [bound, settle, sample]: [u64; 3]) -> String {
        let (length_ms, warm_up_ms) = (bound + settle + sample, bound + settle);
        let mut text = format!(
            "version = 1\nseed = {seed}\nlength_ms = {length_ms}\nwarm_up_ms = {warm_up_ms}\n\
             [machine]\nlike = \"{}\"\nmanaged = \"0-7\"\n\
             [host]\npolicy = \"linux-default\"\ncores = \"shared\"\n\
             [kernel]\nmodel = \"linux-{series}\"\nautogroup = false\n\
             [kernel_threads]\nperiod_us = 1000000\n\
             burst = {{ distribution = \"exponential\", mean_ns = 50000 }}\n",
            self.machine
        );
        for (nth, hogs) in self.hogs.iter().enumerate() {
            let Hogs { count, nice, cgroup, cores, start } = hogs;
            let _ = writeln!(text, "[[task]]\nname = \"{nth}\"\nmodel = \"program\"");
            let _ = match nice {
                Some(nice) => writeln!(text, "nice = {nice}"),
                None => writeln!(text, "sched_idle = true"),
            };
            if let Some((_, weight)) = cgroup {
                let _ = writeln!(text, "session = {nth}\ncpu_weight = {weight}");
            }
            let _ = writeln!(
                text,
                "cores = \"{}\"\n[[task.thread]]\nname = \"hog\"\ncount = {count}\n\
                 start_core = {start}\nsteps = [\"compute 3600s\"]",
                list(cores)
            );
        }
        for (nth, Hogs { start, .. }) in self.hogs.iter().enumerate() {
            let _ = writeln!(text, "[[change]]\nat_ms = 0\nbind = \"{nth}\"\ncores = \"{start}\"");
            let _ = writeln!(text, "[[change]]\nat_ms = {bound}\nbind = \"{nth}\"");
        }
        text
    }
}
